"""A stream whose parts in between go straight into the connection."""

from collections.abc import Callable

from app.http.flow.direct_writer import DirectWriter
from app.http.sse import EventStyle
from app.protocol.answer import GenerationAnswer, Usage
from app.text.choice_text import TextDelta


class DirectStream:
    """Writes what goes on of an answer. Implements `app.generation.outlet.Outlet`."""

    def __init__(
        self,
        connection: DirectWriter,
        answer: GenerationAnswer,
        events: EventStyle,
        usage: Callable[[int], Usage],
    ) -> None:
        """Go on with an answer whose first part has been sent.

        Args:
            usage: tells the tokens of a choice so far.
        """
        self.may_take = connection.may_write
        self._write = connection.write
        self._answer = answer
        self._frames = events.frames
        self._usage = usage
        self._text_chunk = answer.text_chunk

    @property
    def takes_text(self) -> bool:
        """See `Outlet`."""
        return self._text_chunk is not None

    def take_text(self, index: int, text: str, num_tokens: int) -> None:
        """See `Outlet.take_text`."""
        if text and self._text_chunk is not None:
            self._write(self._frames((self._text_chunk(index, text, self._usage),)))

    def take(self, index: int, delta: TextDelta) -> None:
        """See `Outlet.take`."""
        part = self._frames(self._answer.update_chunks(index, delta, self._usage(index)))
        if part:
            self._write(part)
