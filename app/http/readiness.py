"""Before an engine was ready nothing is promised: what needs one is answered by 503."""

from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.errors import HttpError
from engine.runtime.protocol import EngineClient

_PREFIX = "/v1/"


class ReadinessMiddleware:
    """ASGI middleware in front of the routes that need an engine, which are all below /v1.

    Once an engine was ready it lets everything pass: what an engine cannot do later has errors of
    its own.
    """

    def __init__(self, app: ASGIApp, client: EngineClient) -> None:
        self._app = app
        self._client = client
        self._was_ready = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes and paths pass through."""
        if not self._was_ready and scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            await check_ready(self._client)
            self._was_ready = True
        await self._app(scope, receive, send)


async def check_ready(client: EngineClient) -> None:
    """Return if an engine makes progress now.

    Raises:
        HttpError: 503.
    """
    if not await client.is_ready():
        raise HttpError(503, "starting", "no engine is ready yet", headers={"retry-after": "1"})
