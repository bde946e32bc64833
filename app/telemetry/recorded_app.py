"""Keeps a record of every HTTP request, from its arrival to the last byte of its answer."""

import math
import time
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.telemetry.request_record import GONE, RequestRecord

Sink = Callable[[RequestRecord], None]

# that a part waits for room until its client counts as one that does not read
_UNREAD_S = 5.0


class RecordedApp:
    """ASGI middleware around all others.

    Inner layers find the record in `scope["state"]["record"]`. When the request is over, whatever
    ended it, each sink gets it once.
    """

    def __init__(
        self, app: ASGIApp, sinks: Sequence[Sink] = (), *, write_s: float = math.inf
    ) -> None:
        """Wrap an application.

        Args:
            write_s: seconds after which an inner layer cuts off a client that reads nothing; the
                system may have done so before.
        """
        self._app = app
        self._sinks = tuple(sinks)
        self._unread_s = min(_UNREAD_S, write_s / 2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes (lifespan) pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            method=scope["method"], traceparent=Headers(scope=scope).get("traceparent", "")
        )
        state = scope.setdefault("state", {})
        state["record"] = record
        status, waited_until_s = 0, -math.inf

        async def send_noted(message: Message) -> None:
            nonlocal status, waited_until_s
            begin_s = time.perf_counter()
            try:
                await send(message)
            finally:
                now_s = time.perf_counter()
                if now_s - begin_s >= self._unread_s:
                    waited_until_s = now_s
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                record.code = status

        try:
            await self._app(scope, receive, send_noted)
        finally:
            record.ended_s = time.perf_counter()
            if record.code == GONE and record.ended_s - waited_until_s < self._unread_s:
                record.is_unread = True
            record.request_id = state.get("request_id", "")
            record.key = state.get("key_sha256", b"").hex()[:8]
            for sink in self._sinks:
                sink(record)
