"""Splits off what a model thinks before it answers: `<think>...</think>`.

So do Qwen3, DeepSeek R1 and SmolLM3. Some templates write the opening themselves.
"""

from app.text.reply.machine import SPACE, Machine
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
    return (yield from _inside(writer, "" if held.lstrip(SPACE) == OPEN else held))


def _inside(writer: ReplyWriter, begun: str) -> Machine[str]:
    """Read up to the closing, without white space around; returns "" behind it."""
    waiting, has_begun = "", False
    writer.is_reasoning = True
    characters = iter(begun)
    while char := next(characters, "") or (yield):
        waiting += char
        core = waiting.lstrip(SPACE)
        if core == CLOSE:
            writer.is_reasoning = False
            return (yield from _first_word())
        while core and not CLOSE.startswith(core):
            cut = len(waiting) - len(core) + 1
            writer.reasoning(waiting[:cut] if has_begun else core[:1])
            has_begun, waiting = True, waiting[cut:]
            core = waiting.lstrip(SPACE)
    writer.reasoning(waiting.lstrip(SPACE) if not has_begun else waiting)
    return ""


def _first_word() -> Machine[str]:
    while (char := (yield)) and char in SPACE:
        pass
    return char
