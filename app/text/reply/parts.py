"""The parts of a reply, as they become known."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Literal

# Calls are checked whole if they are short, so that what is broken is still text. Longer ones are
# passed on while they come: a client sees the file that is being written. Most calls are shorter.
_HELD_ARGUMENTS_LEN = 128


Kind = Literal["reasoning", "text", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPart:
    """What is new of a reply.

    Attributes:
        kind: `call` is a call of a tool.
        text: characters, of a call those of its arguments, which are JSON.
        number: of the call among those of the reply.
        name: of the tool, in the first part of a call only; and so is `id`.
    """

    kind: Kind
    text: str
    number: int = 0
    name: str | None = None
    id: str | None = None

    def with_text(self, text: str) -> "ReplyPart":
        """Return the same part with other text."""
        return replace(self, text=text)


@dataclass(slots=True, kw_only=True)
class ReplyWriter:
    """Where parsers put what they find.

    Attributes:
        tools: names that may be called.
        make_id: makes the id of a call.
        max_calls: later ones are left out; None for all.
        num_calls: calls so far.
        is_reasoning: whether what is read is reasoning, or what stands around it.
        idle: matches characters that the parser would only add; None where it must see each.
    """

    tools: Collection[str]
    make_id: Callable[[], str]
    max_calls: int | None = None
    num_calls: int = 0
    is_reasoning: bool = False
    idle: re.Pattern[str] | None = None
    _parts: list[ReplyPart] = field(default_factory=list)
    # of the last part, which is complete when another one begins
    _pieces: list[str] = field(default_factory=list)
    _last: ReplyPart | None = None

    def add(self, text: str) -> None:
        """Add a piece of the reasoning, or of the text for the reader."""
        self._add("reasoning" if self.is_reasoning else "text", text)

    def begin_call(self, name: str, arguments: str) -> None:
        """Add a call, with its arguments so far."""
        self.num_calls += 1
        if self._is_wanted:
            number = self.num_calls - 1
            self._begin(
                ReplyPart(kind="call", text="", number=number, name=name, id=self.make_id())
            )
            self._pieces.append(arguments)

    def arguments(self, text: str) -> None:
        """Go on with the arguments of the last call."""
        if self._is_wanted:
            self._add("call", text, self.num_calls - 1)

    def take(self) -> list[ReplyPart]:
        """Return the parts since the last time."""
        self._end()
        parts, self._parts = self._parts, []
        return parts

    @property
    def _is_wanted(self) -> bool:
        return self.max_calls is None or self.num_calls <= self.max_calls

    def _add(self, kind: Kind, text: str, number: int = 0) -> None:
        last = self._last
        if text and (last is None or (last.kind, last.number) != (kind, number)):
            self._begin(ReplyPart(kind=kind, text="", number=number))
        self._pieces.append(text)

    def _begin(self, part: ReplyPart) -> None:
        self._end()
        self._last = part

    def _end(self) -> None:
        if self._last is not None:
            self._parts.append(replace(self._last, text="".join(self._pieces)))
        self._last = None
        self._pieces.clear()


class CallInProgress:
    """A call whose arguments come character by character.

    It is held back while it is short. What is held when it breaks is still text for the reader;
    what has been passed on stays a call, with arguments that end there.

    Attributes:
        has_begun: whether it has been passed on.
    """

    def __init__(self, writer: ReplyWriter) -> None:
        self.has_begun = False
        self._writer = writer
        self._held: list[str] = []

    def add(self, name: str | None, arguments: str) -> None:
        """Add a piece of the arguments, which are an object; the name may come after some."""
        self._held.append(arguments)
        if self.has_begun:
            self._pass_on()
        elif name in self._writer.tools and len(self._held) > _HELD_ARGUMENTS_LEN:
            self._begin(name)

    def end(self, name: str | None, arguments: str | None = None) -> bool:
        """End it; returns whether it was a call of a tool that there is.

        Args:
            arguments: JSON of an object, in place of what has been added.
        """
        if self.has_begun or name not in self._writer.tools:
            return self.has_begun
        if arguments is not None:
            self._held = [arguments]
        self._begin(name)
        return True

    def _begin(self, name: str | None) -> None:
        assert name is not None
        self.has_begun = True
        self._writer.begin_call(name, "".join(self._held))
        self._held.clear()

    def _pass_on(self) -> None:
        self._writer.arguments("".join(self._held))
        self._held.clear()
