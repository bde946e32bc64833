"""Calls written as a list of Python calls: those of Llama 3.2 and Llama 4.

https://github.com/meta-llama/llama-models/blob/main/models/llama3_2/text_prompt_format.md
"""

import ast
import json
import re
from typing import Any

from app.text.reply.machine import SPACE, Machine, read_text
from app.text.reply.parts import ReplyWriter

_OPEN, _CLOSE = "<|python_start|>", "<|python_end|>"
# longer ones are text, so that no call takes long to read
_MAX_CALL_LEN = 1 << 16
_MAX_NAME_LEN = 128
_NAME = re.compile(r"[,\s]*([A-Za-z_][\w.]*)?\s*")
# Python's words and those of JSON, which models mix
_WORDS = {"true": True, "false": False, "null": None}


def pythonic_calls(writer: ReplyWriter) -> Machine[None]:
    """Read a reply that is a list of calls, or is text; markers may stand around the list."""
    spaces = ""
    while (char := (yield)) and char in SPACE:
        spaces += char
    if char == "[":
        char = yield from _list(writer, spaces + char)
        spaces = ""
    else:
        writer.add(spaces)
    while found := (yield from read_text(writer, (_OPEN, _CLOSE), char)):
        char = ""
        if found.endswith(_OPEN) and (char := (yield)) == "[":
            char = yield from _list(writer, found + char)
        elif found.endswith(_OPEN):
            writer.add(found)


def _list(writer: ReplyWriter, held: str) -> Machine[str]:
    """Read a list behind its bracket; returns the character at which text goes on."""
    while True:
        raw, end = yield from _item()
        call = _parsed(raw.strip(SPACE + ",")) if end == ")" else None
        if call is None or call[0] not in writer.tools:
            is_end = end == "]" and not held and not raw.strip(SPACE + ",]")
            writer.add("" if is_end else held + raw)
            return ""
        writer.begin_call(*call)
        held = ""


def _item() -> Machine[tuple[str, str]]:
    """Read up to the end of a call or of the list; returns all of it and its last character."""
    raw, depth = "", 0
    while len(raw) < _MAX_CALL_LEN and (char := (yield)):
        raw += char
        if char in "'\"":
            raw += yield from _quoted(char)
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth <= 0:
                return raw, char
        if not depth and not _may_begin(raw):
            break
    return raw, ""


def _quoted(quote: str) -> Machine[str]:
    """Read a string behind its first quote."""
    raw, is_escaped = "", False
    while len(raw) < _MAX_CALL_LEN and (char := (yield)):
        raw += char
        if char == quote and not is_escaped:
            break
        is_escaped = char == "\\" and not is_escaped
    return raw


def _may_begin(raw: str) -> bool:
    """Whether a text may become a call when more of it has come."""
    return len(raw) <= _MAX_NAME_LEN and _NAME.fullmatch(raw) is not None


def _parsed(text: str) -> tuple[str, str] | None:
    """Return the name and the JSON of the arguments of a call, or None if it is none."""
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            return None
        arguments = {str(word.arg): _value(word.value) for word in node.keywords}
        return ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id) if node.id in _WORDS else _not_a_value()
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(ast.literal_eval(key)) if key else _not_a_value(): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
        }
    return ast.literal_eval(node)


def _not_a_value() -> Any:
    raise ValueError("only values can be arguments")
