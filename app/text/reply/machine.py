"""Parsers as coroutines that take one character at a time, so that no split of a text matters."""

import re
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from typing import TypeVar

from app.text.reply.parts import ReplyPart, ReplyWriter

ResultT = TypeVar("ResultT")
# takes characters, and behind the last one an empty text each time that it asks, until it returns
Machine = Generator[None, str, ResultT]

SPACE = " \t\n\r"


class ReplyParser:
    """Takes one reply apart while it comes.

    Attributes:
        num_reasoning: characters of the reply that were reasoning.
    """

    def __init__(self, machine: Machine[None], writer: ReplyWriter) -> None:
        self._machine = machine
        self._writer = writer
        self.num_reasoning = 0
        next(machine)

    def push(self, text: str) -> list[ReplyPart]:
        """Add text; returns what became known."""
        writer, at = self._writer, 0
        while at < len(text):
            begin, is_reasoning = at, writer.is_reasoning
            # most of a reply cannot be the beginning of anything
            if writer.idle is not None and (run := writer.idle.match(text, at)):
                writer.add(run[0])
                at = run.end()
            else:
                self._machine.send(text[at])
                at, is_reasoning = at + 1, writer.is_reasoning
            self.num_reasoning += is_reasoning * (at - begin)
        return writer.take()

    def finish(self) -> list[ReplyPart]:
        """End the reply; returns what was held back."""
        with suppress(StopIteration):
            while True:
                self._machine.send("")
        return self._writer.take()


def read_text(
    writer: ReplyWriter,
    markers: tuple[str, ...],
    begun: str = "",
    *,
    keeps_last_spaces: bool = True,
) -> Machine[str]:
    """Pass text on up to a marker; returns it and the white space before it, or "" at the end.

    Args:
        begun: a character of it that has been read.
        keeps_last_spaces: whether white space at the very end is text, too.
    """
    spaces, candidate, runs = "", "", _runs(markers)
    char = begun or (yield)
    while char:
        candidate += char
        while candidate and not any(marker.startswith(candidate) for marker in markers):
            first, candidate = candidate[0], candidate[1:]
            if first in SPACE:
                spaces += first
            else:
                writer.add(spaces + first)
                spaces = ""
        if candidate in markers:
            return spaces + candidate
        writer.idle = None if spaces or candidate else runs
        char = yield
        writer.idle = None
    if candidate or keeps_last_spaces:
        writer.add(spaces + candidate)
    return ""


@cache
def _runs(markers: tuple[str, ...]) -> re.Pattern[str]:
    """Match words in which no marker begins, and the white space between them."""
    starts = re.escape("".join({marker[0] for marker in markers}))
    word = rf"[^{starts}{SPACE}]+"
    return re.compile(rf"{word}(?:[{SPACE}]+{word})*")


def replay(begun: str, machine: Machine[ResultT]) -> Machine[ResultT]:
    """Run a machine on characters that have been read, and on those that come."""
    try:
        next(machine)
        for char in begun:
            machine.send(char)
        while True:
            machine.send((yield))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result
