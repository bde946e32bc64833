"""Splits off what a model thinks before it answers: `<think>...</think>`.

So do Qwen3, DeepSeek R1 and SmolLM3. Some templates write the opening themselves.
"""

from app.text.reply.machine import SPACE, Machine, read_text, replay
from app.text.reply.parts import ReplyWriter

OPEN, CLOSE = "<think>", "</think>"


def is_opened_by(prompt: str) -> bool:
    """Whether a prompt, or the end of one, opens the reasoning of the reply."""
    return prompt.rstrip().endswith(OPEN)


def is_inside(text: str) -> bool:
    """Whether a reply that is to be continued ends inside of its reasoning."""
    return text.rfind(OPEN) > text.rfind(CLOSE)


def thinking(writer: ReplyWriter, *, is_open: bool) -> Machine[str]:
    """Read the reasoning at the beginning of a reply.

    Args:
        is_open: whether the prompt ends inside of it.

    Returns:
        What has been read of the text that follows.
    """
    held = ""
    while True:
        core = held.lstrip(SPACE)
        if core == OPEN:
            break
        if not OPEN.startswith(core):
            if is_open:
                break
            return held
        if not (char := (yield)):
            return held
        held += char
    writer.is_reasoning = True
    yield from replay("" if core == OPEN else held, _inside(writer))
    writer.is_reasoning = False
    return (yield from _skip_spaces())


def _inside(writer: ReplyWriter) -> Machine[None]:
    """Read up to the closing, without white space around."""
    char = yield from _skip_spaces()
    if char:
        yield from read_text(writer, (CLOSE,), char)


def _skip_spaces() -> Machine[str]:
    """Return the first character that is no white space."""
    while (char := (yield)) and char in SPACE:
        pass
    return char
