"""Keeps a client's lease at one replica: proof that its process lives and that it reads."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from engine.errors import EngineError

# bytes after which a report is sent at once; well below `WINDOW_BYTES`
ACKNOWLEDGED_BYTES = 1 << 20
# renewals in a row without an answer that mean that a replica is dead or hangs: about 8 s of them.
# Not seconds, because after a second that this loop was busy only one renewal has failed
MAX_FAILURES = 5


class Lease:
    """Reports to a replica, again and again, that this client lives and how much it has read.

    A replica aborts the requests of a client that it has not heard of for too long; see
    `engine.runtime.replica.client_session`. The other way round, a replica that has not answered
    for too long is given up.
    """

    def __init__(
        self,
        renew: Callable[[int], Coroutine[Any, Any, None]],
        period_s: float,
        *,
        on_dead: Callable[[], None],
    ) -> None:
        """Make a lease that `keep` keeps.

        Args:
            renew: sends the number of bytes read from the stream that is attached now.
            on_dead: called once, when `MAX_FAILURES` renewals in a row have failed.
        """
        self._renew = renew
        self._period_s = period_s
        self._on_dead = on_dead
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
        """Renew, once a period and whenever much has been read, until cancelled or given up."""
        num_failed = 0
        while num_failed < MAX_FAILURES:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._is_due.wait()
            self._is_due.clear()
            self._reported_bytes = self._received_bytes
            num_failed = 0 if await self._is_renewed() else num_failed + 1
        self._on_dead()

    async def _is_renewed(self) -> bool:
        """Send one renewal; True if the replica answers within a period."""
        call = asyncio.ensure_future(self._renew(self._reported_bytes))
        try:
            # unlike a timeout this takes an answer that came while the loop was busy
            await asyncio.wait({call}, timeout=self._period_s)
            if not call.done():
                # a period has gone by
                self._is_due.set()
                return False
            call.result()
        except EngineError:
            return False
        finally:
            call.cancel()
        return True
