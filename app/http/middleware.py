"""The outermost layer of the HTTP application: request ids, keys, and an answer to every error."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.generation.watchdog import Watchdog
from app.http.errors import ClientDisconnected, ErrorAnswer, HttpError, describe
from app.http.operator.access import OperatorAccess, key_digest
from app.http.proxy import ID_HEADER, cut, find_session, identify
from app.limits import WRITE_S

logger = logging.getLogger(__name__)

_OPEN_PATHS = ("/", "/live", "/health", "/ui")
_PAGE_FILES, _PAGE_DATA = "/ui/", "/ui/api/"
_MESSAGES_PATH = "/v1/messages"
_MODEL_PREFIX = b"/v1/models/"
# of answers, beside those that every page may read
_IGNORED_HEADER = "x-ignored-parameters"
_EXPOSED_HEADERS = (ID_HEADER, _IGNORED_HEADER, "retry-after", "retry-after-ms")


class RequestMiddleware:
    """ASGI middleware around everything else. No exception leaves it.

    Each answer has the `x-request-id` that `identify` gave the request. Inner layers find what it
    noted in `scope["state"]`, as `"session_id"` what `find_session` found, as `"key_sha256"` the
    digest of the caller's key, empty where none is needed, and for what the page `/ui` shows as
    `"audience"` who looks. To `"ignored"` they add the names of fields without effect, which every
    answer that is no error lists.
    """

    def __init__(
        self,
        app: ASGIApp,
        api_key_sha256: Sequence[bytes] = (),
        cors_origins: Sequence[str] = (),
        operators: OperatorAccess | None = None,
        write_s: float = WRITE_S,
    ) -> None:
        """Make the layer.

        Args:
            cors_origins: origins whose pages may read answers, errors too; `*` for all.
            operators: guards their paths; None where there are none.
            write_s: seconds that a client may read nothing of what is sent.
        """
        self._app = app
        self._write_s = write_s
        self._digests = tuple(api_key_sha256)
        self._operators = operators
        # a browser's preflight has no key, and its answer has a request id
        self._shared_answer = _shared(self._answer, cors_origins) if cors_origins else self._answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; other scopes (lifespan) pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = identify(scope)
        scope["state"]["session_id"] = find_session(scope)
        ignored: list[str] = []
        scope["state"]["ignored"] = ignored
        loop, watchdog = asyncio.get_running_loop(), Watchdog()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[ID_HEADER] = request_id
                if ignored and message["status"] < 400:
                    headers[_IGNORED_HEADER] = ", ".join(ignored)
            with _as_disconnect():
                try:
                    # until the connection has room, or its client has gone
                    await watchdog.wait(send(message), loop.time() + self._write_s)
                except TimeoutError:
                    cut(send)
                    raise

        async def receive_or_leave() -> Message:
            with _as_disconnect():
                return await receive()

        with suppress(ClientDisconnected), closing(watchdog):
            await self._shared_answer(scope, receive_or_leave, send_with_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_noted(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, send_noted)
        except ClientDisconnected:
            raise
        except Exception as error:  # no layer outside of this one answers
            answer = describe(error)
            if not has_started:
                await answer.send(send, as_anthropic=_is_anthropic(scope))

    def _check(self, scope: Scope) -> None:
        # an application of Serve may have a prefix, which stands in front of every path
        prefix = scope.get("root_path", "")
        path = scope["path"].removeprefix(prefix)
        raw_path = (scope.get("raw_path") or b"").removeprefix(prefix.encode())
        if b"%" in raw_path and not raw_path.startswith(_MODEL_PREFIX):
            # a path has one spelling, so that no rule about paths can be bypassed
            raise HttpError(404, "unknown_url", "there is nothing at this path")
        scope["state"]["key_sha256"] = b""
        if self._operators is not None and self._operators.covers(path):
            self._operators.check(scope)
            return
        if self._operators is not None and path.startswith(_PAGE_DATA):
            scope["state"]["audience"] = self._operators.audience(scope, self._digests)
            return
        own_header = "x-api-key" if _is_anthropic(scope) else ""
        digest = key_digest(scope, self._digests, own_header=own_header) if self._digests else b""
        scope["state"]["key_sha256"] = digest
        if self._digests and not digest and not _is_open(path):
            raise HttpError(
                401,
                "invalid_api_key",
                "a valid key is needed: Authorization: Bearer KEY",
                headers={"www-authenticate": "Bearer"},
            )


def _is_open(path: str) -> bool:
    """Whether anybody may ask: probes have no key, and the page has no data."""
    return path in _OPEN_PATHS or path.startswith(_PAGE_FILES)


def _is_anthropic(scope: Scope) -> bool:
    """Whether Anthropic's clients send such requests, with keys and errors of their own."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return bool(path == _MESSAGES_PATH or path.startswith(f"{_MESSAGES_PATH}/"))


class _CorsMiddleware(CORSMiddleware):
    """Refuses a preflight in the shape of the API's errors; starlette would in plain text."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        refusal = ErrorAnswer(
            status=response.status_code,
            message="pages of this origin, or requests of this kind, are not let through",
            code="preflight_refused",
        )
        own = ("content-length", "content-type")
        headers = {k: v for k, v in response.headers.items() if k not in own}
        return Response(refusal.to_json(), refusal.status, headers, "application/json")


def _shared(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of other origins call `app`: https://fetch.spec.whatwg.org/#http-cors-protocol."""
    return _CorsMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        # clients send many of their own
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=_EXPOSED_HEADERS,
    )


@contextmanager
def _as_disconnect() -> Iterator[None]:
    """Take whatever the connection raises as its end: sockets and Serve raise many things then."""
    try:
        yield
    except Exception as error:
        logger.debug("client_disconnected error=%r", error)
        raise ClientDisconnected from error
