"""Gives memory back to the system after large requests; the C library would keep it."""

import asyncio
import contextvars
import ctypes
import gc
from collections.abc import Callable

# of one body or answer; to tokenise a text takes up to 300 bytes for each of its characters
WORTH_BYTES = 128 << 10
# after the last of a burst, but after its first at the latest
WAIT_S = 1.0
MAX_WAIT_S = 10.0


def trim_memory() -> None:
    """Collect garbage, and return the free pages of all arenas to the system.

    Other C libraries than glibc return none.
    """
    gc.collect()
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Trimmer:
    """Trims once a burst of large requests is over."""

    def __init__(self, trim: Callable[[], None] = trim_memory) -> None:
        """Args: trim: is called in a thread."""
        self._trim = trim
        self._timer: asyncio.TimerHandle | None = None
        self._latest_s = 0.0

    def passed(self, num_bytes: int) -> None:
        """Note the bytes of a body or an answer that has been let go of."""
        if num_bytes < WORTH_BYTES:
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._latest_s = loop.time() + MAX_WAIT_S
        else:
            self._timer.cancel()
        at_s = min(loop.time() + WAIT_S, self._latest_s)
        # not in the context of the request that happened to be the last
        self._timer = loop.call_at(at_s, self._start, context=contextvars.Context())

    def _start(self) -> None:
        self._timer = None
        asyncio.get_running_loop().run_in_executor(None, self._trim)
