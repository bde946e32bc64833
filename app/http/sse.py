"""Server-sent events: one `data:` line per chunk, then `[DONE]`."""

from collections.abc import Iterable

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx passes each chunk on at once
    (b"x-accel-buffering", b"no"),
]
# a comment, which clients skip
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def frames(chunks: Iterable[bytes]) -> bytes:
    """Frame JSON texts without line breaks as events."""
    return b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)
