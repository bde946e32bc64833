"""Faults of replies: how they are taken apart, and what calls are forced to be."""

from app.text.reply.call_grammar import _of_schema, _Writer
from app.text.reply.formats import ReplyFormat, format_of
from app.text.reply.history import _with_ids
from app.text.reply.json_scanner import JsonScanner
from tests.mutation.mutant import Fault

REPLY_FAULTS = [
    Fault(
        what="arguments may be nested without an end",
        function=JsonScanner._value,
        old="and self.depth < _MAX_DEPTH",
        new="",
        noticed_by="test_deep_json_is_broken",
    ),
    Fault(
        what="reasoning is text",
        function=ReplyFormat._machine,
        old="if self.thinks:",
        new="if False:",
        noticed_by="test_reasoning_alone_is_split_off_without_tools",
    ),
    Fault(
        what="a format that is not known is read as one that is",
        function=format_of,
        old="if not any(sign in template for sign in _OTHER_SIGNS):",
        new="if True:",
        noticed_by="test_a_template_says_the_format",
    ),
    Fault(
        what="two results without ids answer the same call",
        function=_with_ids,
        old="waiting.remove(id)",
        new="pass",
        noticed_by="test_missing_ids_are_given_in_order",
    ),
    Fault(
        what="a call that must be made need not be made",
        function=_Writer._reply,
        old="if self._rules.must_call:",
        new="if False:",
        noticed_by="test_nothing_else_matches",
    ),
    Fault(
        what="a client sets the options of the grammar library",
        function=_of_schema,
        old='{**schema, "x-guidance": _OPTIONS}',
        new='{"x-guidance": _OPTIONS, **schema}',
        noticed_by="test_what_is_forced_is_what_is_parsed",
    ),
]
