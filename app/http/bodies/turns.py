"""Lets large bodies into a process a few at a time: many at once would hold up other requests.

A body that waits for its turn stays in the kernel's buffers and with its client. A client that
sends slowly does not keep its turn: after `_TURN_S` it goes on beside the others, since slow bodies
take little of the loop's time.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

# a body of this size takes the loop less than a millisecond
_SMALL_BYTES = 256 << 10
_NUM_PLACES = 2
_TURN_S = 0.1


class BodyTurns:
    """The places that large bodies of one process take in turn, first come, first served."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_NUM_PLACES)

    def body(self, scope: Scope, receive: Receive) -> "BodyTurn":
        """Wrap a request's `receive`; the caller ends the turn when the request has ended."""
        declared = Headers(scope=scope).get("content-length", "")
        is_chunked = "transfer-encoding" in Headers(scope=scope)
        is_large = int(declared) > _SMALL_BYTES if declared.isdigit() else is_chunked
        return BodyTurn(receive, self._places if is_large else None)


class BodyTurn:
    """A request's `receive` that waits for a place before the first part of a large body."""

    def __init__(self, receive: Receive, places: asyncio.Semaphore | None) -> None:
        self._receive = receive
        # None when none is needed any more
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self) -> Message:
        """Return the next part of the body, or that the client has gone."""
        places = self._places
        if places is not None and self._timer is None:
            await places.acquire()
            if self._places is None:
                # the request has ended meanwhile
                places.release()
            else:
                self._timer = asyncio.get_running_loop().call_later(_TURN_S, self.end)
        message = await self._receive()
        if not message.get("more_body", False):
            self.end()
        return message

    def end(self) -> None:
        """Give the place to the next body; may be called again."""
        places, self._places = self._places, None
        if places is not None and self._timer is not None:
            self._timer.cancel()
            places.release()
