"""Grammars that force calls of tools, in the frame that a model's format has.

They are written in the Lark of llguidance:
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.text.reply import thinking

_ANY_OBJECT = {"type": "object"}
# The library's options. A run of white space ends, since small models like to go on for ever.
_OPTIONS = {
    "lenient": False,
    "coerce_one_of": False,
    "whitespace_flexible": True,
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}",
}
# small models would also call for ever
_MAX_CALLS = 16
_SPECIAL_OF_REGEX = re.compile(r"[\\.+*?()|\[\]{}^$/]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFrame:
    """What stands around calls that are forced.

    Attributes:
        open, close: stand around all calls, or around each if `wraps_each`.
        between: stands between two calls.
        arguments: the key of the arguments.
    """

    open: str = ""
    close: str = ""
    between: str = ""
    arguments: str = "arguments"
    wraps_each: bool = False

    @property
    def marker(self) -> str:
        """What begins calls behind text; nothing where they begin the reply."""
        return self.open.rstrip("[ \n")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What a reply must be.

    Attributes:
        functions: those that may be called, as OpenAI's API has them.
        must_call: whether it must be a call; else it may be text, and only the arguments of
            functions that are `strict` are checked.
        only_one: whether there may be one call only.
        answer: JSON schema of the text where there is no call; None for any text.
        thinks, is_thinking: see `ReplyFormat`.
    """

    functions: Sequence[Mapping[str, Any]]
    must_call: bool
    only_one: bool = False
    answer: Mapping[str, Any] | None = None
    thinks: bool = False
    is_thinking: bool = False


def call_grammar(frame: CallFrame, rules: CallRules, special_ids: Mapping[str, int]) -> str:
    """Return the grammar of a reply.

    Args:
        special_ids: id of each control token, by spelling: none of them is matched by text.
    """
    return "\n".join(_Writer(frame, rules, special_ids).lines())


class _Writer:
    def __init__(self, frame: CallFrame, rules: CallRules, special_ids: Mapping[str, int]) -> None:
        self._frame = frame
        self._rules = rules
        self._special_ids = special_ids

    def lines(self) -> Iterator[str]:
        rules = self._rules
        before = ""
        if rules.is_thinking:
            before = "reasoning "
        elif rules.thinks:
            before = f"({self._literal(thinking.OPEN)} reasoning)? "
        yield f"start: {before}{self._reply()}"
        if before:
            yield from self._up_to("reasoning", thinking.CLOSE, behind="SPACE")
            yield r"SPACE: /\s*/"
        if rules.functions:
            yield from self._calls()
        for index, function in enumerate(rules.functions):
            yield from self._function(index, function)
        if rules.answer is not None and not rules.must_call:
            yield f"answer: {_of_schema(rules.answer)}"
        yield r"TEXT: /(.|\n)*/"

    def _reply(self) -> str:
        if self._rules.must_call:
            return "calls"
        if not self._rules.functions:
            return "answer"
        if self._rules.answer is not None:
            return "(calls | answer)"
        return "(calls | text)" if not self._frame.marker else "(lead calls)* TEXT"

    def _calls(self) -> Iterator[str]:
        frame, rules = self._frame, self._rules
        names = " | ".join(f"call_{index}" for index in range(len(rules.functions)))
        yield f"call: {names}"
        opening, closing = self._literal(frame.open), self._literal(frame.close)
        is_free = not rules.must_call and rules.answer is None
        if is_free and frame.marker:
            # the marker has been read with the text before it
            yield from self._up_to("lead", frame.marker)
            rest = frame.open.removeprefix(frame.marker)
            opening = self._literal(rest)
        elif is_free:
            yield r"text: /(\s*[^{\s](.|\n)*)?/"
        one = f"{opening} call {closing}" if frame.wraps_each else "call"
        more = f" ({self._literal(frame.between)} {one}){{0,{_MAX_CALLS - 1}}}"
        # text may come between two calls that have markers of their own
        has_one = rules.only_one or (is_free and frame.marker and frame.wraps_each)
        many = one if has_one else one + more
        yield f"calls: {many if frame.wraps_each else f'{opening} {many} {closing}'}"

    def _function(self, index: int, function: Mapping[str, Any]) -> Iterator[str]:
        frame, rules = self._frame, self._rules
        head = f'{{"name": {json.dumps(function["name"])}, "{frame.arguments}": '
        yield f'call_{index}: {json.dumps(head)} arguments_{index} "}}"'
        is_checked = rules.must_call or function.get("strict")
        schema = _ANY_OBJECT | dict(function.get("parameters") or {}) if is_checked else _ANY_OBJECT
        yield f"arguments_{index}: {_of_schema(schema)}"

    def _literal(self, text: str) -> str:
        """Write a text, in which a control token may stand at the beginning."""
        for spelling, id in self._special_ids.items():
            if text.startswith(spelling):
                return f"<[{id}]> {self._literal(text.removeprefix(spelling))}".rstrip()
        return json.dumps(text) if text else ""

    def _up_to(self, rule: str, marker: str, *, behind: str = "") -> Iterator[str]:
        """Write a rule for text up to a marker, and what may stand behind it."""
        if marker in self._special_ids:
            yield f"{rule}: TEXT {self._literal(marker)} {behind}".rstrip()
            return
        pattern = _SPECIAL_OF_REGEX.sub(r"\\\g<0>", marker)
        yield f"{rule}: {rule}_text {behind}".rstrip()
        yield rf"{rule}_text[lazy]: /(.|\n)*{pattern}/"


def _of_schema(schema: Mapping[str, Any]) -> str:
    """Write JSON of a schema; the options of the library are not the client's to set."""
    content = {**schema, "x-guidance": _OPTIONS}
    return f"%json {json.dumps(content)}"
