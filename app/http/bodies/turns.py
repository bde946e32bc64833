"""Lets requests with large bodies in one at a time: many at once would hold up other requests.

A request that waits for its turn is not seen by Serve yet, and most of its body stays in the
kernel's buffers and with its client. Its turn lasts until its answer begins, so that whoever reads
and checks the body is done with it by then. It ends earlier where nothing comes for a while: of a
client that sends slowly, which goes on beside the others since it takes little of the loop's time,
or of an engine that has much to do before its first token.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

# a body of this size takes the loop less than a millisecond
_SMALL_BYTES = 256 << 10
# one of 4 MB takes two processes behind Serve's proxy about 20 ms of CPU time each
_NUM_PLACES = 1
_TURN_S = 0.1
# for the next part of a body, and behind the last one for the answer
_PATIENCE_S = 0.04
# Serve's own proxy has a call between processes for each part, those of a server are 64 KiB
_PIECE_BYTES = 1 << 20


class BodyTurns:
    """The places that large bodies of one process take in turn, first come, first served."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_NUM_PLACES)

    @asynccontextmanager
    async def turn(self, scope: Scope) -> "AsyncIterator[BodyTurn]":
        """Wait for a request's turn, if its body is large; it ends with the request at last."""
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        is_chunked = "transfer-encoding" in headers
        if not (int(declared) > _SMALL_BYTES if declared.isdigit() else is_chunked):
            yield BodyTurn(None)
            return
        await self._places.acquire()
        turn = BodyTurn(self._places)
        try:
            yield turn
        finally:
            turn.end()


class BodyTurn:
    """One request's turn: a place that it has until it ends."""

    def __init__(self, places: asyncio.Semaphore | None) -> None:
        """Begin; Args: places: in which one has been acquired, None where none is needed."""
        self._places = places
        self._timers: list[asyncio.TimerHandle] = []
        self._end_within(_TURN_S)

    def end(self) -> None:
        """Give the place to the next body; may be called again."""
        places, self._places = self._places, None
        if places is not None:
            for timer in self._timers:
                timer.cancel()
            places.release()

    def received(self, receive: Receive) -> Receive:
        """Wrap a request's `receive`: parts come joined while it has its turn."""
        if self._places is None:
            return receive
        is_read = False

        async def receive_joined() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            message = await self._in_time(receive) or await receive()
            parts = [message.get("body", b"")]
            while self._wants_more(message, parts):
                later = await self._in_time(receive)
                if later is None:
                    break
                message = later
                parts.append(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if is_read:
                self._end_within(_PATIENCE_S)
            if len(parts) == 1 or message["type"] == "http.disconnect":
                return message
            return {**message, "body": b"".join(parts)}

        return receive_joined

    def _end_within(self, seconds: float) -> None:
        if self._places is not None:
            self._timers.append(asyncio.get_running_loop().call_later(seconds, self.end))

    async def _in_time(self, receive: Receive) -> Message | None:
        """Return the next part; None if the client is slow, which ends the turn."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await receive()
        except TimeoutError:
            self.end()
            return None

    def _wants_more(self, message: Message, parts: list[bytes]) -> bool:
        is_open = self._places is not None and message.get("more_body", False)
        return is_open and sum(map(len, parts)) < _PIECE_BYTES
