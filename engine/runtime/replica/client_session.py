"""What one ingress is to be told, kept until its stream takes it, for as long as it is there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from engine.errors import EngineError
from engine.runtime.messages import encode_batch
from engine.runtime.replica.open_choices import OpenChoices

SILENT, SLOW = "silent", "slow"


class Mailbox:
    """Messages, open requests and lease of one client. Lives in one asyncio loop.

    The lease is renewed by `renew` while a stream is attached. A client whose process was killed
    cannot say goodbye, and its stream may look attached for ever. Nor does a stream that takes
    messages mean that the client reads them: what lies between is unbounded, so the client says how
    much has arrived. When the lease has run out, or too much is on its way, `on_lost` is called.

    Attributes:
        open: the client's requests.
    """

    def __init__(
        self,
        *,
        lease_s: float,
        idle_s: float,
        max_undelivered_bytes: int,
        coalesce_s: float,
        on_lost: Callable[[str], None],
    ) -> None:
        """Begin a lease.

        Args:
            lease_s: seconds that the client may be silent.
            idle_s: seconds without an open request after which the stream ends itself.
            max_undelivered_bytes: bytes that may be queued or on their way.
            coalesce_s: least seconds between two batches without first news.
            on_lost: called with SILENT or SLOW.
        """
        self.open = OpenChoices()
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._max_undelivered_bytes = max_undelivered_bytes
        self._coalesce_s = coalesce_s
        self._on_lost = on_lost
        self._untold: set[int] = set()
        self._messages: list[bytes] = []
        self._queued_bytes = 0
        self._sent_bytes = 0
        self._received_bytes = 0
        self._news = asyncio.Event()
        self._stream = 0
        self._is_attached = False
        self._end: EngineError | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._taken_s = -coalesce_s
        self._timer = self._loop.call_later(lease_s, self._check_lease)
        self._flush: asyncio.TimerHandle | None = None

    def put(self, message: bytes, request_ids: Iterable[int]) -> None:
        """Queue an encoded output for the stream.

        Unless it is the first news of a request, it is gathered with what follows soon: a batch
        costs the same CPU time on its way to the clients, however much it holds.

        Args:
            request_ids: of the requests that it tells of, others may be among them.
        """
        self._messages.append(message)
        self._queued_bytes += len(message)
        self._announce(self._note_first_news(request_ids))
        on_their_way = self._sent_bytes - self._received_bytes
        if self._queued_bytes + on_their_way > self._max_undelivered_bytes:
            self._on_lost(SLOW)

    def opened(self, request_id: int, num_choices: int) -> None:
        """Note an accepted request; its client has the lease's time to attach."""
        self.open.open(request_id, num_choices)
        self._untold.add(request_id)
        self._heard_s = self._loop.time()
        self._news.set()

    def renew(self, received_bytes: int) -> None:
        """Note that the client lives and has read this much of its stream.

        Without a stream it is no use to the client, and ignored.
        """
        if self._is_attached:
            self._heard_s = self._loop.time()
            # a call that was made for an earlier stream may come late
            self._received_bytes = min(received_bytes, self._sent_bytes)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield everything that is queued, one batch at a time, until the client has been idle.

        A second stream takes over from the first.

        Raises:
            EngineError: if the mailbox is closed.
        """
        self._stream += 1
        mine = self._stream
        self._is_attached = True
        self._sent_bytes = self._received_bytes = 0
        self._heard_s = self._loop.time()
        self._news.set()
        try:
            while await self._wait_for_news() and mine == self._stream:
                if self._messages:
                    yield self._take_batch()
        finally:
            if mine == self._stream:
                self._is_attached = False

    def close(self, reason: str) -> None:
        """End the stream with an error, and the lease; what is queued is dropped."""
        self._end = EngineError(reason)
        self._messages.clear()
        self._timer.cancel()
        self._stop_gathering()
        self._news.set()

    def _take_batch(self) -> bytes:
        batch = encode_batch(self._messages)
        self._messages.clear()
        self._queued_bytes = 0
        self._sent_bytes += len(batch)
        self._taken_s = self._loop.time()
        self._stop_gathering()
        self._news.clear()
        return batch

    def _note_first_news(self, request_ids: Iterable[int]) -> bool:
        firsts = self._untold.intersection(request_ids) if self._untold else ()
        self._untold.difference_update(firsts)
        return bool(firsts)

    def _announce(self, is_urgent: bool) -> None:
        wait_s = 0.0 if is_urgent else self._taken_s + self._coalesce_s - self._loop.time()
        if wait_s <= 0:
            self._news.set()
        elif self._flush is None:
            self._flush = self._loop.call_later(wait_s, self._news.set)

    def _stop_gathering(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    async def _wait_for_news(self) -> bool:
        """Wait until there may be a message; False when the client has been idle for long."""
        self._check_open()
        if not self._messages:
            self._news.clear()
        try:
            async with asyncio.timeout(None if self.open else self._idle_s):
                await self._news.wait()
        except TimeoutError:
            return bool(self._messages)
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end

    def _check_lease(self) -> None:
        left_s = self._heard_s + self._lease_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_lease)
        else:
            self._on_lost(SILENT)
