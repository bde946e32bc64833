"""Replies in the harmony format of gpt-oss: channels for reasoning, calls and the answer.

https://cookbook.openai.com/articles/openai-harmony
"""

import re

from app.text.reply.json_calls import bare_arguments
from app.text.reply.machine import SPACE, Machine, read_text
from app.text.reply.parts import ReplyWriter

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
_FUNCTION = re.compile(r"to=functions\.([A-Za-z0-9_.-]+)")
# a longer header is none
_MAX_HEADER_LEN = 256


def harmony(writer: ReplyWriter) -> Machine[None]:
    """Read messages to the end of a reply; what is in no channel is text."""
    while True:
        header = yield from _header()
        if not header.endswith(MESSAGE):
            rest = yield from _body_of_text(writer, header)
        elif function := _FUNCTION.search(header):
            rest = yield from _call(writer, function[1])
        elif header.startswith((f"{CHANNEL}analysis", f"{START}assistant{CHANNEL}analysis")):
            rest = yield from _message(writer, is_reasoning=True)
        else:
            rest = yield from _message(writer, is_reasoning=False)
        if not rest:
            return


def _header() -> Machine[str]:
    """Read the head of a message; returns it, or what has been read of what is none."""
    header = ""
    while len(header) < _MAX_HEADER_LEN and (char := (yield)):
        header += char
        core = header.lstrip(SPACE)
        begins = any(
            start.startswith(core) or core.startswith(start) for start in (CHANNEL, START, "to=")
        )
        if not begins or header.endswith(MESSAGE):
            break
    return header.lstrip(SPACE) if header.endswith(MESSAGE) else header


def _body_of_text(writer: ReplyWriter, begun: str) -> Machine[str]:
    writer.add(begun)
    return (yield from _message(writer, is_reasoning=False))


def _message(writer: ReplyWriter, *, is_reasoning: bool, begun: str = "") -> Machine[str]:
    """Read a message up to its end; returns the end, or "" at that of the reply."""
    writer.is_reasoning = is_reasoning
    found = yield from read_text(writer, ENDS, begun)
    end = found.lstrip(SPACE)
    writer.add(found.removesuffix(end))
    writer.is_reasoning = False
    return end


def _call(writer: ReplyWriter, name: str) -> Machine[str]:
    spaces = ""
    while (char := (yield)) and char in SPACE:
        spaces += char
    if char == "{":
        char = yield from bare_arguments(writer, name, spaces, char)
    else:
        writer.add(spaces)
    return (yield from _message(writer, is_reasoning=False, begun=char))
