"""What runs in front of the application, where HTTP comes in.

It gives requests their ids, takes headers from clients that are meant for Serve, lets requests with
large bodies in one at a time, and of many that come at once a few.

serve_config.yaml names `middlewares` in its `controller_options`. Serve calls it in each HTTP proxy
and, behind HAProxy, in each ingress replica, before it looks at a request itself. It is imported
there, so this module needs little but starlette.

A client that does not read is cut off here: behind the proxy nobody knows what it has read.

`x-session-id` means a conversation to us and a replica to Serve, so it goes on under another name.
"""

import asyncio
import re
import secrets
import socket
from asyncio import WriteTransport
from contextlib import closing, suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.generation.watchdog import Watchdog
from app.http.bodies.turns import BodyTurns
from app.http.errors import describe
from app.http.flow.arrivals import Arrivals
from app.http.flow.direct_writer import open_direct_writer
from app.http.flow.guarded_protocol import guard_uvicorn
from app.http.operator.access import is_local
from app.limits import MAX_SESSION_ID_LEN, SENT_BYTES, WRITE_S

ID_HEADER = "x-request-id"
SESSION_HEADER = "x-session-id"
# as it goes on from here; no client's own gets past
_OWN_SESSION_HEADER = "x-pagoda-session"
_SESSION_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_SESSION_ID_LEN}}}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Ray Serve would let the client lift its limits and choose its replica
_SERVE_HEADERS = (
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    SESSION_HEADER.encode(),
    b"serve-multiplexed-model-id",
)
_SERVE_PREFIX = b"x-serve-"
# of Serve
_ROUTES_PATH = "/-/routes"
_OWN_HEADERS = (ID_HEADER.encode(), _OWN_SESSION_HEADER.encode())


def middlewares() -> list[Middleware]:
    """Called by Serve before it starts its server; the first is the innermost."""
    guard_uvicorn()
    return [Middleware(ProxyMiddleware)]


class ProxyMiddleware:
    """ASGI middleware around Serve's own: takes from a request what is meant for Serve.

    The application and Serve see one request id, and the answer has it once, also where Serve
    answers by itself. Large bodies take turns.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = BodyTurns()
        self._arrivals = Arrivals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope.get("method") == "POST":
            # a probe must not wait behind a burst
            await self._arrivals.begin()
        request_id = identify(scope)
        kept = [(name, value) for name, value in scope["headers"] if not _is_taken(name)]
        kept.append((ID_HEADER.encode(), request_id.encode()))
        session = _harmless(scope, SESSION_HEADER, _SESSION_ID)
        if session is not None:
            kept.append((_OWN_SESSION_HEADER.encode(), session.encode()))
        scope["headers"] = kept
        app = _nothing_here if _is_private(scope) else self._app
        bound(send)
        open_direct_writer(send)
        loop, watchdog = asyncio.get_running_loop(), Watchdog()

        async def send_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                turn.end()
                headers = MutableHeaders(scope=message)
                # Serve appends one beside the application's
                headers[ID_HEADER] = request_id
                if _has_rest(send):
                    # nobody waits for the rest of a body that has its answer
                    headers["connection"] = "close"
            try:
                await watchdog.wait(send(message), loop.time() + WRITE_S)
            except TimeoutError:
                cut(send)
                raise _NotReadError("the client does not read") from None

        with suppress(_NotReadError), closing(watchdog):
            async with self._turns.turn(scope) as turn:
                await app(scope, turn.received(receive), send_one_id)


class _NotReadError(OSError):
    """What a server raises when its connection is gone."""


def cut(send: Send) -> None:
    """Close the connection now; uvicorn would wait for the client to read what is sent already."""
    transport = _transport(send)
    if transport is not None:
        transport.abort()


def _has_rest(send: Send) -> bool:
    """Whether a part of the request's body has not come yet, as far as the server knows."""
    return bool(getattr(getattr(send, "__self__", None), "more_body", False))


def _is_private(scope: Scope) -> bool:
    """Whether a request asks for the names of applications, and not from this machine."""
    return scope.get("path", "").lower() == _ROUTES_PATH and not is_local(scope)


async def _nothing_here(_scope: Scope, _receive: Receive, send: Send) -> None:
    await describe(HTTPException(404)).send(send)


def bound(send: Send) -> None:
    """Let the system take little of an answer that its client does not read, and not for long.

    On one machine it would take megabytes, for each client, before anybody could notice. It ends
    the connection `WRITE_S` after the last byte that the client took: nothing above it can tell
    when that was.
    """
    transport = _transport(send)
    own = None if transport is None else transport.get_extra_info("socket")
    if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1e3 * WRITE_S))


def _transport(send: Send) -> WriteTransport | None:
    """The connection that uvicorn sends to; None where something else does."""
    transport: WriteTransport | None = getattr(getattr(send, "__self__", None), "transport", None)
    return transport


def identify(scope: Scope) -> str:
    """Give a request its id: the client's own if it is harmless text, else a random one.

    It is noted as `scope["state"]["request_id"]`, and in `"has_own_id"` whether it is the client's;
    whoever asks later gets the same id.
    """
    state = scope.setdefault("state", {})
    if "request_id" not in state:
        own_id = _harmless(scope, ID_HEADER, _REQUEST_ID)
        state["has_own_id"] = own_id is not None
        state["request_id"] = own_id or secrets.token_hex(12)
    return str(state["request_id"])


def find_session(scope: Scope) -> str | None:
    """Return the conversation that a request's headers name, if they name one by harmless text.

    It is found behind `ProxyMiddleware` and without it.
    """
    own = _harmless(scope, _OWN_SESSION_HEADER, _SESSION_ID)
    return own or _harmless(scope, SESSION_HEADER, _SESSION_ID)


def _harmless(scope: Scope, name: str, pattern: re.Pattern[str]) -> str | None:
    """Return a header that was sent once and looks as it should, else None."""
    given = Headers(scope=scope).getlist(name)
    return given[0] if len(given) == 1 and pattern.fullmatch(given[0]) else None


def _is_taken(name: bytes) -> bool:
    # some gateways write one for the other, and Serve takes both
    name = name.lower().replace(b"_", b"-")
    return name in _SERVE_HEADERS or name in _OWN_HEADERS or name.startswith(_SERVE_PREFIX)
