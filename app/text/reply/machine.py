"""Parsers as coroutines that take one character at a time, so that no split of a text matters."""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
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
        for char in text:
            self._machine.send(char)
            self.num_reasoning += self._writer.is_reasoning
        return self._writer.take()

    def finish(self) -> list[ReplyPart]:
        """End the reply; returns what was held back."""
        with suppress(StopIteration):
            while True:
                self._machine.send("")
        return self._writer.take()


def read_text(
    write: Callable[[str], None],
    markers: Sequence[str],
    begun: str = "",
    *,
    keeps_last_spaces: bool = True,
) -> Machine[str]:
    """Pass text on up to a marker; returns it and the white space before it, or "" at the end.

    Args:
        write: takes what is text.
        begun: a character of it that has been read.
        keeps_last_spaces: whether white space at the very end is text, too.
    """
    spaces, candidate = "", ""
    while char := begun or (yield):
        begun, candidate = "", candidate + char
        while candidate and not any(marker.startswith(candidate) for marker in markers):
            first, candidate = candidate[0], candidate[1:]
            if first in SPACE:
                spaces += first
            else:
                write(spaces + first)
                spaces = ""
        if candidate in markers:
            return spaces + candidate
    if candidate or keeps_last_spaces:
        write(spaces + candidate)
    return ""


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
