"""Lets requests with large bodies in one at a time: many at once would hold up other requests.

A request that waits for its turn is not seen by Serve yet, and most of its body stays in the
kernel's buffers and with its client. Its turn lasts until its answer begins, so that whoever reads
and checks the body is done with it by then. It ends earlier where nothing comes for a while: of a
client that sends slowly, whose parts then pass one by one between the turns of others, or of an
engine that has much to do before its first token.
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
# for a whole body; for its next part; behind the last one for the answer
_TURN_S, _PATIENCE_S, _ANSWER_S = 0.5, 0.04, 0.1
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
        is_large = int(declared) > _SMALL_BYTES if declared.isdigit() else is_chunked
        turn = BodyTurn(self._places if is_large else None)
        await turn.begin()
        try:
            yield turn
        finally:
            turn.end()


class BodyTurn:
    """One request's turn: the place that it has, gives up while its client is slow, takes again."""

    def __init__(self, places: asyncio.Semaphore | None) -> None:
        """Args: places: None where none is needed."""
        # None once none is needed any more
        self._places = places
        self._has_place = False
        self._is_slow = False
        self._timers: list[asyncio.TimerHandle] = []

    async def begin(self) -> None:
        """Wait for a place, if it has none and needs one."""
        places = self._places
        if places is None or self._has_place:
            return
        await places.acquire()
        if self._places is None:
            # the answer has begun meanwhile
            places.release()
            return
        self._has_place = True
        self._pause_within(_TURN_S)

    def pause(self) -> None:
        """Give the place to the next body; what comes of this one passes between the others."""
        self._is_slow = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._has_place and self._places is not None:
            self._has_place = False
            self._places.release()

    def end(self) -> None:
        """Give the place to the next body for good; may be called again."""
        self.pause()
        self._places = None

    def received(self, receive: Receive) -> Receive:
        """Wrap a request's `receive`: parts come joined, and only in its turn."""
        if self._places is None:
            return receive
        is_read = False

        async def receive_joined() -> Message:
            nonlocal is_read
            if is_read or self._places is None:
                return await receive()
            message = await self._next(receive)
            is_read = not message.get("more_body", False)
            if is_read and self._has_place:
                self._pause_within(_ANSWER_S)
            return message

        return receive_joined

    async def _next(self, receive: Receive) -> Message:
        """Return what is to be handed on next, in the request's turn."""
        message = await self._in_time(receive) or await receive()
        if message["type"] == "http.disconnect":
            return message
        await self.begin()
        if self._is_slow and message.get("more_body", False):
            self.pause()
            return message
        parts = [message.get("body", b"")]
        while self._wants_more(message, parts):
            later = await self._in_time(receive)
            if later is None:
                break
            message = later
            parts.append(message.get("body", b""))
        if len(parts) == 1 or message["type"] == "http.disconnect":
            return message
        return {**message, "body": b"".join(parts)}

    def _pause_within(self, seconds: float) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, self.pause))

    async def _in_time(self, receive: Receive) -> Message | None:
        """Return the next part; None if the client is slow, which gives up the place."""
        if not self._has_place:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await receive()
        except TimeoutError:
            self.pause()
            return None

    def _wants_more(self, message: Message, parts: list[bytes]) -> bool:
        is_open = self._has_place and message.get("more_body", False)
        return is_open and sum(map(len, parts)) < _PIECE_BYTES
