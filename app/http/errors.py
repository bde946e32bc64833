"""Every error that a client can see, in OpenAI's shape: one table of statuses and codes."""

import logging
from dataclasses import dataclass, field

import msgspec
from starlette.exceptions import HTTPException
from starlette.types import Send

from app.protocol.errors import DeadlineExceeded, ModelNotFound, PrefixNotFound
from engine.errors import (
    EngineError,
    EngineUnavailable,
    Overloaded,
    RequestCrashes,
    RequestError,
)

logger = logging.getLogger(__name__)

_MAX_MESSAGE_LEN = 1000
# a longer wait makes OpenAI's client give up at once
_MAX_RETRY_AFTER_S = 120

# https://docs.anthropic.com/en/api/errors
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class HttpError(Exception):
    """The request failed as HTTP: its path, key, headers or size, not the fields of its body.

    Attributes:
        code: a short machine-readable word.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


class ClientDisconnected(Exception):
    """The client closed the connection, so there is no answer to send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """One error as the client sees it.

    Attributes:
        param: the request field at fault, or None.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """OpenAI's name for the family of the status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @property
    def shown(self) -> str:
        """The message, as long as clients get it."""
        return self.message[:_MAX_MESSAGE_LEN]

    def to_anthropic_json(self) -> bytes:
        """Return the body for Anthropic's clients, with what OpenAI's has beside it."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error")
        error = {"type": kind, "message": self.shown, "param": self.param, "code": self.code}
        return msgspec.json.encode({"type": "error", "error": error})

    def to_json(self) -> bytes:
        """Return the body, which is also the last event of a broken stream."""
        error = {
            "message": self.shown,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    async def send(self, send: Send, *, as_anthropic: bool = False) -> None:
        """Answer a request that has no answer yet."""
        body = self.to_anthropic_json() if as_anthropic else self.to_json()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((name.encode(), value.encode()) for name, value in self.headers.items()),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def describe(error: Exception) -> ErrorAnswer:
    """Return what a client may know of an error; an unexpected one is logged in full."""
    match error:
        case HttpError():
            return ErrorAnswer(
                status=error.status, message=str(error), code=error.code, headers=error.headers
            )
        case HTTPException():
            return _routing_error(error)
        case Overloaded():
            return ErrorAnswer(
                status=429,
                message=str(error),
                code=error.code,
                headers=_retry_after(error.retry_after_s),
            )
        case DeadlineExceeded():
            return ErrorAnswer(status=504, message=str(error), code=error.code)
        case RequestError():
            status = 404 if isinstance(error, ModelNotFound | PrefixNotFound) else 400
            return ErrorAnswer(
                status=status, message=str(error), code=error.code, param=error.param
            )
        case RequestCrashes():
            return _crash_answer(error)
        case EngineError():
            wait_s = error.retry_after_s if isinstance(error, EngineUnavailable) else 1.0
            # the engine logs the cause once, so that not every open request repeats it
            logger.debug("engine_unavailable error=%r", error)
            return ErrorAnswer(
                status=503,
                message="the engine is not available; nothing was generated, so try again",
                code="engine_unavailable",
                headers=_retry_after(wait_s),
            )
    logger.error("internal_error", exc_info=error)
    return ErrorAnswer(status=500, message="the server made a mistake", code="internal_error")


def describe_broken_stream(error: Exception) -> ErrorAnswer:
    """Like `describe`, for an answer of which a part has been sent."""
    if isinstance(error, EngineError) and not isinstance(error, RequestCrashes):
        logger.debug("engine_failed error=%r", error)
        return ErrorAnswer(
            status=503, message="the engine failed during generation", code="engine_failed"
        )
    return describe(error)


def _crash_answer(error: RequestCrashes) -> ErrorAnswer:
    return ErrorAnswer(
        status=500,
        message="the engine failed each time that it ran this request; do not send it again",
        code=error.code,
        # OpenAI's clients repeat what has failed by a 5xx, but for this header
        headers={"x-should-retry": "false"},
    )


def _routing_error(error: HTTPException) -> ErrorAnswer:
    headers = dict(error.headers or {})
    if error.status_code == 405:
        return ErrorAnswer(
            status=405,
            message="this path does not take this method",
            code="method_not_allowed",
            headers=headers,
        )
    return ErrorAnswer(
        status=404, message="there is nothing at this path", code="unknown_url", headers=headers
    )


def _retry_after(wait_s: float) -> dict[str, str]:
    seconds = min(max(wait_s, 0.0), _MAX_RETRY_AFTER_S)
    return {"retry-after": f"{seconds:.0f}", "retry-after-ms": f"{seconds * 1000:.0f}"}
