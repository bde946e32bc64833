"""What runs in front of the application, where HTTP comes in: request ids and client headers.

serve_config.yaml names `middlewares` in its `controller_options`. Serve calls it in each HTTP proxy
and, behind HAProxy, in each ingress replica, before it looks at a request itself. It is imported
there, so this module needs nothing but starlette.
"""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ID_HEADER = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Ray Serve would let the client lift its limits and choose its replica
_SERVE_HEADERS = (
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    b"x-session-id",
    b"serve-multiplexed-model-id",
)
_SERVE_PREFIX = b"x-serve-"


def middlewares() -> list[Middleware]:
    """Called by Serve; the first is the innermost."""
    return [Middleware(ProxyMiddleware)]


class ProxyMiddleware:
    """ASGI middleware around Serve's own: takes from a request what is meant for Serve.

    The application and Serve see one request id, and the answer has it once, also where Serve
    answers by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = identify(scope)
        kept = [(name, value) for name, value in scope["headers"] if not _is_taken(name)]
        scope["headers"] = [*kept, (ID_HEADER.encode(), request_id.encode())]

        async def send_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Serve appends one beside the application's
                MutableHeaders(scope=message)[ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_one_id)


def identify(scope: Scope) -> str:
    """Give a request its id: the client's own if it is harmless text, else a random one.

    It is noted as `scope["state"]["request_id"]`, and in `"has_own_id"` whether it is the client's;
    whoever asks later gets the same id.
    """
    state = scope.setdefault("state", {})
    if "request_id" not in state:
        given = Headers(scope=scope).getlist(ID_HEADER)
        has_own_id = len(given) == 1 and bool(_REQUEST_ID.fullmatch(given[0]))
        state["has_own_id"] = has_own_id
        state["request_id"] = given[0] if has_own_id else secrets.token_hex(12)
    return str(state["request_id"])


def _is_taken(name: bytes) -> bool:
    # some gateways write one for the other, and Serve takes both
    name = name.lower().replace(b"_", b"-")
    return name in _SERVE_HEADERS or name.startswith(_SERVE_PREFIX) or name == ID_HEADER.encode()
