"""Server-sent events, in the manners of the APIs that are spoken here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.http.errors import ErrorAnswer
from app.protocol.chat.events import event, name_of

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx passes each chunk on at once
    (b"x-accel-buffering", b"no"),
]
# a comment, which clients skip
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStyle:
    """How the objects of a stream are sent.

    Attributes:
        frames: makes events of JSON texts without line breaks.
        done: what comes behind the last one.
        error: makes the object of an error that ends a stream.
    """

    frames: Callable[[Iterable[bytes]], bytes]
    done: bytes
    error: Callable[[ErrorAnswer], bytes]


def frames(chunks: Iterable[bytes]) -> bytes:
    """Frame JSON texts as events without names."""
    return b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)


def named_frames(chunks: Iterable[bytes]) -> bytes:
    """Frame JSON texts that have a `type`, which is also the name of the event."""
    return b"".join(
        b"event: " + name_of(chunk).encode() + b"\ndata: " + chunk + b"\n\n" for chunk in chunks
    )


def _response_error(answer: ErrorAnswer) -> bytes:
    return event("error", code=answer.code, message=answer.shown, param=answer.param)


CHUNKS = EventStyle(frames=frames, done=DONE, error=ErrorAnswer.to_json)
RESPONSES = EventStyle(frames=named_frames, done=b"", error=_response_error)
MESSAGES = EventStyle(frames=named_frames, done=b"", error=ErrorAnswer.to_anthropic_json)
