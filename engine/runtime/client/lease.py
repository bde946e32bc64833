"""Keeps a client's lease at one replica: proof that its process lives and that it reads."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from engine.errors import EngineError

# bytes after which a report is sent at once; well below `MAX_UNDELIVERED_BYTES`
ACKNOWLEDGED_BYTES = 1 << 20


class Lease:
    """Reports to a replica, again and again, that this client lives and how much it has read.

    A replica aborts the requests of a client that it has not heard of for too long; see
    `engine.runtime.replica.client_session`.
    """

    def __init__(self, renew: Callable[[int], Awaitable[None]], period_s: float) -> None:
        """Args: renew: sends the number of bytes read from the stream that is attached now."""
        self._renew = renew
        self._period_s = period_s
        self._received_bytes = 0
        self._reported_bytes = 0
        self._is_due = asyncio.Event()

    def attached(self) -> None:
        """Note that a stream begins."""
        self._received_bytes = self._reported_bytes = 0

    def received(self, num_bytes: int) -> None:
        """Note what has been read."""
        self._received_bytes += num_bytes
        if self._received_bytes - self._reported_bytes >= ACKNOWLEDGED_BYTES:
            self._is_due.set()

    async def keep(self) -> None:
        """Renew, once a period and whenever much has been read, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._is_due.wait()
            self._is_due.clear()
            self._reported_bytes = self._received_bytes
            # that a replica is dead shows at its stream
            with suppress(EngineError):
                await self._renew(self._reported_bytes)
