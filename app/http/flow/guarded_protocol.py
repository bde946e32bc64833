"""Limits on heads of requests where uvicorn reads them, which has none of its own.

Serve's proxy and its replicas run uvicorn without a setting for its protocol, so `guard_uvicorn`
puts this one into the place from which uvicorn takes its default.
"""

import asyncio
import secrets
from typing import Any

from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.http.errors import ErrorAnswer
from app.limits import HEAD_S, MAX_HEAD_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, MAX_URL_BYTES

# for the rest of a body that nobody wants, whose client may still read the answer
_LINGER_S = 5.0
_BAD = ErrorAnswer(status=400, code="bad_request", message="this is not HTTP")


def guard_uvicorn() -> None:
    """Have each server that uvicorn starts in this process from now on read with limits."""
    auto.AutoHTTPProtocol = GuardedProtocol


class _HeadRefused(Exception):
    """Ends the parser's work; what the client is to get is noted already."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection, closed when a head is too large, too slow, or a body goes on unwanted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal = _BAD
        self._num_headers = self._head_bytes = 0
        # received since the parser last made anything of it
        self._unparsed_bytes = 0
        self._is_in_head, self._is_in_message = True, False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the first request its time."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._start_timer(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and look how much of it is not understood yet."""
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(431, "headers_too_large", f"over {MAX_HEAD_BYTES} bytes without an end")
            self.send_400_response("")
        elif self._is_in_head and self._timer is None:
            self._start_timer(HEAD_S)

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._num_headers = self._head_bytes = 0
        self._is_in_head = self._is_in_message = True

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        self._unparsed_bytes = 0
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(414, "url_too_long", f"the URL is longer than {MAX_URL_BYTES} bytes")
            raise _HeadRefused

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or one that follows the body."""
        super().on_header(name, value)
        self._unparsed_bytes = 0
        self._num_headers += 1
        # as it is sent, with `: ` and the end of the line
        length = len(name) + len(value) + 4
        self._head_bytes += length
        if self._num_headers > MAX_HEADERS:
            self._refuse(431, "headers_too_large", f"there are more than {MAX_HEADERS} headers")
        elif length > MAX_HEADER_BYTES:
            message = f"a header is longer than {MAX_HEADER_BYTES} bytes"
            self._refuse(431, "headers_too_large", message)
        elif self._head_bytes > MAX_HEAD_BYTES:
            message = f"the headers are longer than {MAX_HEAD_BYTES} bytes"
            self._refuse(431, "headers_too_large", message)
        else:
            return
        raise _HeadRefused

    def on_headers_complete(self) -> None:
        """Begin the request."""
        self._unparsed_bytes = 0
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take note that the request is here."""
        self._unparsed_bytes = 0
        self._is_in_message = False
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Do not wait for ever for the rest of a body that has its answer."""
        super().on_response_complete()
        if self._is_in_message and not self._is_in_head and not self.transport.is_closing():
            self._start_timer(_LINGER_S)

    def send_400_response(self, msg: str) -> None:
        """Send why the request is refused, in the API's shape, and close the connection."""
        self._stop_timer()
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            # another answer would stand in the middle of this one
            self.transport.abort()
            return
        self.transport.write(_as_http(self._refusal))
        self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._refusal = ErrorAnswer(status=status, code=code, message=message)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._is_too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_too_late(self) -> None:
        self._timer = None
        if self._is_in_message and self._is_in_head:
            message = f"the request's head has not come within {HEAD_S:g} s"
            self._refuse(408, "upload_timeout", message)
            self.send_400_response("")
        else:
            # nothing was asked, or it has been answered
            self.transport.close()


def _as_http(answer: ErrorAnswer) -> bytes:
    body = answer.to_json()
    lines = (
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
        b"x-request-id: " + secrets.token_hex(12).encode(),
    )
    return STATUS_LINE[answer.status] + b"\r\n".join((*lines, b"", body))
