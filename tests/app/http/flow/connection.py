"""A connection of uvicorn whose bytes the test looks at."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Connection(asyncio.Transport):
    """Serves one request.

    Args:
        pauses_after: writes after which the client stops reading for a moment.
    """

    def __init__(self, pauses_after: int | None = None) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_cut = False
        self._pauses_after = pauses_after
        self._flow = FlowControl(self)
        self.cycle: Any = None

    async def serve(
        self, app: ASGIApp, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(headers),
            "http_version": "1.1",
        }
        self.open(scope)
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await asyncio.Event().wait()
            raise AssertionError("a client that stays sends nothing more")

        await app(scope, receive, self.cycle.send)

    def open(self, scope: dict[str, Any]) -> None:
        """Begin a request that has come whole."""
        self.cycle = RequestResponseCycle(
            scope=scope,  # type: ignore[arg-type]
            transport=self,
            flow=self._flow,
            logger=logging.getLogger("uvicorn.error"),
            access_logger=logging.getLogger("uvicorn.access"),
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=lambda: None,
        )
        self.cycle.more_body = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        if len(self.writes) == self._pauses_after:
            self._flow.pause_writing()
            asyncio.get_running_loop().call_later(0, self._flow.resume_writing)

    def is_closing(self) -> bool:
        return self.is_cut

    def abort(self) -> None:
        self.is_cut = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def pause_writing(self) -> None:
        """As the system does when its buffer is full."""
        self._flow.pause_writing()

    def body(self) -> bytes:
        """The body of the answer, whose chunks must be whole."""
        head, _, rest = b"".join(self.writes).partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        parts = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            parts.append(rest[:length])
            assert rest[length : length + 2] == b"\r\n"
            rest = rest[length + 2 :]
        assert parts[-1] == b"", "the body has not ended"
        return b"".join(parts)
