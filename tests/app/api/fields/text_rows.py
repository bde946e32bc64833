"""Fields of the routes that generate nothing: token ids and pinned prefixes."""

from tests.app.api.fields.chat_rows import MESSAGES, TOOLS, USER
from tests.app.api.fields.rows import (
    TOO_LONG,
    VOCAB,
    Row,
    Wrong,
    flag,
    number,
    other,
    text,
    unknown,
    unsupported,
)
from tests.app.api.fields.shared_rows import MODEL

_NO_PROMPT = {"prompt": None}
_CHAT = {**_NO_PROMPT, "messages": [USER]}


def _beside(row: Row, **fields: object) -> Row:
    """The row of a field that is not required here."""
    # what is too long to be answered is still counted
    bad = [w for w in row.bad if not (isinstance(w, Wrong) and w.code == TOO_LONG)]
    return Row(name=row.name, good=row.good, bad=bad, beside=fields, is_one_of_two=row is MESSAGES)


TOKENIZE: list[Row] = [
    MODEL,
    text("prompt", ("x", "", "\0", "a" * 2000), is_one_of_two=True),
    _beside(MESSAGES, **_NO_PROMPT),
    flag("add_special_tokens"),
    flag("add_generation_prompt", beside=_CHAT),
    flag("continue_final_message", beside=_CHAT),
    other("chat_template_kwargs", ({}, {"a": 1}), ([], "x", 5, True, {"messages": []}),
          beside=_CHAT),
    _beside(TOOLS, **_CHAT),
    flag("return_token_strs"),
    unsupported("chat_template", "x", 5),
    unknown("not_a_field", 1),
]  # fmt: skip
DETOKENIZE: list[Row] = [
    MODEL,
    other("tokens", ([], [5], [0, VOCAB - 1], [5] * 5000),
          ({}, "x", 5, True, Wrong([-1], "[0]"), Wrong([3, VOCAB], "[1]"), Wrong([2**31], "[0]"),
           Wrong([2**63], "[0]"), Wrong([10**400], "[0]"), Wrong(["5"], "[0]"),
           Wrong([5.0], "[0]"), Wrong([True], "[0]"), Wrong([None], "[0]"), Wrong([[5]], "[0]")),
          is_required=True),
    unknown("not_a_field", 1),
]  # fmt: skip
PREFIX: list[Row] = [
    MODEL,
    text("name", ("p", "A._-9", "x" * 64), ("", "a b", "../x", "x" * 65, "ü", "a\n"),
         is_required=True),
    other("prompt", ("x", [5], [0, VOCAB - 1]),
          ("", [], {}, 5, True, Wrong(["a"], "[0]"), Wrong([5, -1], "[1]"), Wrong([VOCAB], "[0]"),
           Wrong([10**400], "[0]"), Wrong([[5]], "[0]"), Wrong([1] * 512, code=TOO_LONG)),
          is_one_of_two=True),
    _beside(MESSAGES, **_NO_PROMPT),
    flag("add_special_tokens"),
    number("ttl_s", (1e-3, 60, 366 * 24 * 3600), (0, -1, 366 * 24 * 3600 + 1, 10**400)),
    text("cache_salt", ("s", "x" * 128), ("", "x" * 129)),
    unsupported("chat_template", "x"),
    unsupported("chat_template_kwargs", {"a": 1}),
    unsupported("tools", [{"type": "function", "function": {"name": "f"}}]),
    unknown("not_a_field", 1),
]  # fmt: skip
