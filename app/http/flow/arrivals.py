"""Lets requests that come at once begin a few at a time, so that tokens pass between them.

A request takes a few milliseconds of its process until an engine has it. Of hundreds that come
together each would do its first part, then each its second: the event loop would be away from the
streams that are open for as long as all of them take, and no engine would have any of them until
all are read.
"""

import asyncio
from collections import deque

# requests that begin in one turn of the event loop. When 512 came at once, the longest turn took 40
# to 51 ms of CPU time (a busy core of an AMD EPYC), and 124 to 210 without turns; with 8 no less,
# and the last first tokens came later, as each turn also sends what open streams have got
_NUM_AT_ONCE = 16


class Arrivals:
    """The requests of one event loop that are to begin, first come, first served."""

    def __init__(self) -> None:
        # only while as many as may have begun in this turn of the loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._num_begun = 0

    async def begin(self) -> None:
        """Return when a request may begin: at once, unless others have just begun."""
        if self._num_begun < _NUM_AT_ONCE:
            self._note_begun()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _note_begun(self) -> None:
        if not self._num_begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._num_begun += 1

    def _next_turn(self) -> None:
        self._num_begun = 0
        while self._waiting and self._num_begun < _NUM_AT_ONCE:
            turn = self._waiting.popleft()
            # one that was cancelled while it waited needs no turn
            if not turn.done():
                turn.set_result(None)
                self._note_begun()
