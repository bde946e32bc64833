"""Gives memory back to the system after large requests, which the C library would keep."""

import asyncio
import contextvars
import ctypes
from collections.abc import Callable

# bytes of bodies and answers after which it is worth the time, a few milliseconds
WORTH_BYTES = 4 << 20
# after the last of a burst
WAIT_S = 1.0


def trim_memory() -> None:
    """Return free pages of all arenas to the system; without effect on other C libraries."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Trimmer:
    """Trims once a burst of large requests is over."""

    def __init__(self, trim: Callable[[], None] = trim_memory) -> None:
        """Args: trim: is called in a thread."""
        self._trim = trim
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def passed(self, num_bytes: int) -> None:
        """Note the bytes of a body or an answer that has been let go of."""
        self._num_bytes += num_bytes
        if self._num_bytes < WORTH_BYTES:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        # not in the context of the request that happened to be the last
        self._timer = loop.call_later(WAIT_S, self._start, context=contextvars.Context())

    def _start(self) -> None:
        self._timer, self._num_bytes = None, 0
        asyncio.get_running_loop().run_in_executor(None, self._trim)
