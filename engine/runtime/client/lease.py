"""What keeps a client's place at a replica."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from engine.errors import EngineError

# bytes after which the replica is told at once; well below what it holds back for a client
ACKNOWLEDGED_BYTES = 1 << 20


class Lease:
    """Tells a replica, again and again, that this client lives and how much it has read."""

    def __init__(self, renew: Callable[[int], Awaitable[None]], period_s: float) -> None:
        """Args: renew: tells the bytes read from the stream that is attached now."""
        self._renew = renew
        self._period_s = period_s
        self._received_bytes = 0
        self._told_bytes = 0
        self._is_due = asyncio.Event()

    def attached(self) -> None:
        """Note that a stream begins."""
        self._received_bytes = self._told_bytes = 0

    def received(self, num_bytes: int) -> None:
        """Note what has been read."""
        self._received_bytes += num_bytes
        if self._received_bytes - self._told_bytes >= ACKNOWLEDGED_BYTES:
            self._is_due.set()

    async def keep(self) -> None:
        """Renew until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._is_due.wait()
            self._is_due.clear()
            self._told_bytes = self._received_bytes
            # the stream's end tells of a dead replica
            with suppress(EngineError):
                await self._renew(self._told_bytes)
