"""Writes parts of a stream into the connection itself, past what lies between it and the endpoint.

A part of a stream that goes on is nobody's business on the way: what counts answers, limits times
and turns errors into answers needs its head and its end. So where the application runs in the
process of the HTTP server, as it does behind HAProxy, the parts in between take this way as long as
the connection has room. Where it runs behind Serve's own proxy, whose process has the connection,
they go straight into the queue of messages to that process, which takes whatever comes. Everything
else, and all of it elsewhere, goes through the layers and ASGI's `send`.
"""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from engine.errors import InvariantViolated

# where Serve puts messages into the queue to its proxy
_QUEUE_MODULE = "ray.serve._private.replica"


class DirectWriter(Protocol):
    """Takes parts of the body of one answer. Made in the loop that serves its request.

    Attributes:
        loop: the only one that may use it.
    """

    loop: asyncio.AbstractEventLoop

    def may_write(self) -> bool:
        """Whether a part of the body can be written now, and nobody has to wait for that."""
        ...

    def write(self, part: bytes) -> None:
        """Write a part of the body, which is not empty; only after `may_write`."""
        ...


class ConnectionWriter:
    """The connection of one request, as uvicorn has it. Implements `DirectWriter`."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.loop = asyncio.get_running_loop()
        self._cycle = cycle
        self._transport = cycle.transport

    def may_write(self) -> bool:
        """See `DirectWriter.may_write`."""
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
        """See `DirectWriter.write`."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))


class QueueWriter:
    """Serve's queue of messages to the process of its proxy. Implements `DirectWriter`.

    Of a request whose client has gone the task is cancelled: then nobody writes any more.
    """

    def __init__(self, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        self._send = send

    def may_write(self) -> bool:
        """See `DirectWriter.may_write`; the queue takes whatever comes."""
        return True

    def write(self, part: bytes) -> None:
        """See `DirectWriter.write`."""
        sent = self._send({"type": "http.response.body", "body": part, "more_body": True})
        # it has nothing to wait for, so that its first step is all of it
        sending = cast("Coroutine[Any, Any, None]", sent)
        try:
            sending.send(None)
        except StopIteration:
            return
        sending.close()
        raise InvariantViolated("Serve's queue has no room")


class DirectApp:
    """ASGI application around another, which Serve runs: offers requests the queue to its proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes pass through."""
        if scope["type"] == "http" and direct_writer() is None:
            open_direct_writer(send)
        await self._app(scope, receive, send)


# of the request that the current task serves; a task that serves it in another process has none
_writer: contextvars.ContextVar[DirectWriter | None] = contextvars.ContextVar(
    "direct_writer", default=None
)


def open_direct_writer(send: Send) -> None:
    """Offer a direct way to what serves the request from here on, if `send` is of a known kind."""
    cycle = getattr(send, "__self__", None)
    writer: DirectWriter | None = None
    if isinstance(cycle, RequestResponseCycle):
        writer = ConnectionWriter(cycle)
    elif getattr(send, "__module__", "") == _QUEUE_MODULE:
        writer = QueueWriter(send)
    _writer.set(writer)


def direct_writer() -> DirectWriter | None:
    """The direct way of the request that the current task serves; None where there is none."""
    writer = _writer.get()
    # Serve may run the application in a thread of its own, with this context
    if writer is None or writer.loop is not asyncio.get_running_loop():
        return None
    return writer
