"""Writes parts of a stream into the connection itself, past what lies between it and the endpoint.

A part of a stream that goes on is nobody's business on the way: what counts answers, limits times
and turns errors into answers needs its head and its end. So where the application runs in the
process of the HTTP server, as it does behind HAProxy, the parts in between take this way as long as
the connection has room; everything else, and all of it elsewhere, goes through ASGI's `send`.
"""

import asyncio
import contextvars

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class DirectWriter:
    """The connection of one request, as uvicorn has it. Made in the loop that serves it.

    Attributes:
        loop: the only one that may use it.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.loop = asyncio.get_running_loop()
        self._cycle = cycle
        self._transport = cycle.transport

    def may_write(self) -> bool:
        """Whether a part of the body can be written now, and nobody has to wait for that."""
        cycle = self._cycle
        return (
            cycle.response_started
            and not cycle.response_complete
            and bool(cycle.chunked_encoding)
            and not cycle.disconnected
            and not cycle.flow.write_paused
            and not self._transport.is_closing()
        )

    def write(self, part: bytes) -> None:
        """Write a part of the body, which is not empty; only after `may_write`."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))


# of the request that the current task serves; a task that serves it in another process has none
_writer: contextvars.ContextVar[DirectWriter | None] = contextvars.ContextVar(
    "direct_writer", default=None
)


def open_direct_writer(send: Send) -> None:
    """Offer a direct way to what serves the request from here on, if uvicorn has made `send`."""
    cycle = getattr(send, "__self__", None)
    _writer.set(DirectWriter(cycle) if isinstance(cycle, RequestResponseCycle) else None)


def direct_writer() -> DirectWriter | None:
    """The direct way of the request that the current task serves; None where there is none."""
    writer = _writer.get()
    # Serve may run the application in a thread of its own, with this context
    if writer is None or writer.loop is not asyncio.get_running_loop():
        return None
    return writer
