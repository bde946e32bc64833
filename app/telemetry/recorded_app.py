"""Keeps a record of every HTTP request, from its arrival to the last byte of its answer."""

import time
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.telemetry.request_record import RequestRecord

Sink = Callable[[RequestRecord], None]


class RecordedApp:
    """ASGI middleware around all others.

    Inner layers find the record in `scope["state"]["record"]`. When the request is over, whatever
    ended it, each sink gets it once.
    """

    def __init__(self, app: ASGIApp, sinks: Sequence[Sink] = ()) -> None:
        self._app = app
        self._sinks = tuple(sinks)

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
        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                record.code = status

        try:
            await self._app(scope, receive, send_noted)
        finally:
            record.ended_s = time.perf_counter()
            record.request_id = state.get("request_id", "")
            record.key = state.get("key_sha256", b"").hex()[:8]
            for sink in self._sinks:
                sink(record)
