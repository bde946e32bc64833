"""Counts the HTTP requests that are being answered, to know when there are none."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send


class CountedApp:
    """An ASGI application around another one.

    Attributes:
        num_open: requests whose answer has not been sent whole.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.num_open = 0
        self._app = app
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes (lifespan) are not counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self.num_open += 1
        self._is_idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._is_idle.set()

    async def wait_until_idle(self, timeout_s: float) -> int:
        """Wait until nothing is open; returns how much is after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_idle.wait()
        except TimeoutError:
            pass
        return self.num_open
