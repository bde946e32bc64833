"""Calls written as JSON: those of Hermes and Qwen, Llama 3, SmolLM2 and Mistral."""

import json
import re
from dataclasses import dataclass
from typing import Any

from app.text.reply.json_scanner import JsonScanner
from app.text.reply.machine import SPACE, Machine, read_text
from app.text.reply.parts import CallInProgress, ReplyWriter

_ARGUMENTS = ("arguments", "parameters")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFrame:
    """Where a format has its calls.

    Attributes:
        open: what stands in front of calls.
        close: what stands behind them; nothing where they end with the reply.
        separators: what may stand between two calls, beside white space.
        is_bare: whether a reply that begins with an object is a call, too.
        names: whether a name and one of these may stand in front of bare arguments.
    """

    open: str
    close: str = ""
    separators: str = ","
    is_bare: bool = False
    names: tuple[str, ...] = ()


def json_calls(writer: ReplyWriter, frame: JsonFrame) -> Machine[None]:
    """Read text and calls to the end of a reply."""
    begun = ""
    if frame.is_bare:
        begun = yield from _leading_object(writer, frame)
    while True:
        held = yield from read_text(
            writer, (frame.open,), begun, keeps_last_spaces=not writer.num_calls
        )
        if not held:
            return
        begun = yield from _calls(writer, frame, held)


def bare_arguments(writer: ReplyWriter, name: str, held: str, char: str) -> Machine[str]:
    """Read the arguments of a call whose name is known.

    Args:
        held: what is text if no call follows.
        char: the brace that begins them.

    Returns:
        The character at which text goes on, or "".
    """
    scanner, call = JsonScanner(), CallInProgress(writer)
    raw = ""
    while char:
        scanner.feed(char)
        if scanner.is_broken:
            break
        raw += char
        call.add(name, char)
        if scanner.is_complete and call.end(name):
            return ""
        char = "" if scanner.is_complete else (yield)
    if not call.has_begun:
        writer.add(held + raw)
    return char


def _leading_object(writer: ReplyWriter, frame: JsonFrame) -> Machine[str]:
    """Read the calls of a reply that begins with one; returns the first character that is not."""
    spaces = ""
    while (char := (yield)) and char in SPACE:
        spaces += char
    if char == "{":
        return (yield from _calls(writer, frame, spaces, char))
    writer.add(spaces)
    return char


def _calls(writer: ReplyWriter, frame: JsonFrame, held: str, begun: str = "") -> Machine[str]:
    """Read the calls behind an opening.

    Args:
        held: what is text if no call follows.
        begun: what has been read of the first one.

    Returns:
        The character at which text goes on, or "" at the end and behind the closing.
    """
    in_list = False
    while True:
        raw = begun or (yield from _between(frame, in_list=in_list))
        begun, kind = "", raw.lstrip(SPACE + frame.separators)
        if kind == "[" and not in_list:
            in_list, held = True, held + raw
        elif kind == "{":
            rest = yield from _object(writer, held + raw[:-1])
            if rest is not None:
                return rest
            held = ""
        elif kind == "]" and in_list:
            in_list, held = False, ""
            if not frame.close:
                return ""
        elif frame.names and not in_list and _NAME.fullmatch(kind):
            return (yield from _named(writer, frame, held + raw))
        else:
            return _leave(writer, frame, held, raw)


def _leave(writer: ReplyWriter, frame: JsonFrame, held: str, raw: str) -> str:
    """Leave the calls at something else; see `_calls`."""
    is_closing = bool(frame.close) and raw.endswith(frame.close)
    if held or not (is_closing or not raw.strip(SPACE + frame.separators)):
        writer.add(held + raw[:-1])
        return raw[-1:]
    return ""


def _between(frame: JsonFrame, *, in_list: bool) -> Machine[str]:
    """Read up to the next call, the end of a list or the closing; returns all of it."""
    raw = ""
    while char := (yield):
        raw += char
        kind = raw.lstrip(SPACE + frame.separators)
        if kind and (in_list or not frame.close.startswith(kind) or kind == frame.close):
            return raw
    return raw


def _object(writer: ReplyWriter, held: str) -> Machine[str | None]:
    """Read a call, behind its brace; returns None, or where text goes on if it was none."""
    reader = _CallObject(writer)
    reader.feed("{")
    while not (reader.is_complete or reader.is_broken) and (char := (yield)):
        reader.feed(char)
    if reader.is_complete and reader.end():
        return None
    rest = reader.raw[-1:] if reader.is_broken else ""
    if not reader.has_begun:
        writer.add(held + reader.raw[: len(reader.raw) - len(rest)])
    return rest


def _named(writer: ReplyWriter, frame: JsonFrame, held: str) -> Machine[str]:
    """Read a call that is a name, something between, and bare arguments."""
    name, between = held[-1], ""
    while (char := (yield)) and _NAME.fullmatch(name + char):
        name += char
    while char and char != "{" and len(between) < 64:
        between += char
        char = yield
    is_known = any(re.fullmatch(pattern, between) for pattern in frame.names)
    held += name[1:] + between
    if char != "{" or not is_known:
        writer.add(held)
        return char
    return (yield from bare_arguments(writer, name, held, char))


class _CallObject:
    """Reads {"name": ..., "arguments": {...}}, whatever the order."""

    def __init__(self, writer: ReplyWriter) -> None:
        self._scanner = JsonScanner()
        self._call = CallInProgress(writer)
        self._raw: list[str] = []
        self._tool = ""
        self._values: dict[str, list[str]] = {}

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete

    @property
    def is_broken(self) -> bool:
        return self._scanner.is_broken

    @property
    def has_begun(self) -> bool:
        return self._call.has_begun

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    def feed(self, char: str) -> None:
        scanner = self._scanner
        ends_value = scanner.depth > 1 or (scanner.in_value and not scanner.in_scalar)
        scanner.feed(char)
        self._raw.append(char)
        if scanner.is_broken or not (ends_value or scanner.in_value):
            return
        value = self._values.setdefault(scanner.key, [])
        value.append(char)
        if scanner.key in _ARGUMENTS and value[0] == "{":
            self._call.add(self._name(), char)

    def end(self) -> bool:
        """Whether the object that is complete was a call."""
        self._scanner.key = ""
        given = next((self._value(key) for key in _ARGUMENTS if key in self._values), "null")
        arguments = _as_object(given)
        return arguments is not None and self._call.end(self._name(), arguments)

    def _name(self) -> str | None:
        """Return the name of the tool, once it is known."""
        if not self._tool and "name" in self._values and self._scanner.key != "name":
            name = json.loads(self._value("name"))
            self._tool = name if isinstance(name, str) else ""
        return self._tool or None

    def _value(self, key: str) -> str:
        return "".join(self._values[key])


def _as_object(arguments: str) -> str | None:
    """Return arguments as the JSON of an object; some models write them as a string."""
    if arguments.startswith("{"):
        return arguments
    value = json.loads(arguments)
    if value is None or value == "":
        return "{}"
    if not isinstance(value, str):
        return None
    return value if isinstance(_loaded(value), dict) else None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
