"""What a replica keeps for one ingress: its open requests, output for its stream, its lease.

An ingress is a client of the replica. All output of its requests goes out in one stream, the one
that the client attached last.

- Coalescing: a batch costs the same CPU time on its way to the clients, however much it holds. So
  output is gathered for a while, unless it is the first of a request: the longer, the more requests
  get their part of each batch.
- Lease: a client whose process was killed says nothing, and its stream may look attached for ever.
  So the client renews its lease again and again; after `lease_s` without it, the client is lost,
  unless its process still lives: a busy one is forgiven for up to `forgiven_s`.
- Credit: that a stream takes messages does not mean that the client reads them, and what lies
  between is unbounded. So each renewal says how many bytes have arrived, and no more than a window
  of them is on its way. What waits meanwhile counts for each request: one that has too much waiting
  is ended, and the others go on. Only a client that reads nothing for `forgiven_s` is lost.
"""

import asyncio
import contextvars
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from engine.errors import EngineError
from engine.runtime.messages import encode_batch
from engine.runtime.replica.open_choices import OpenChoices

LEASE_S = 5.0
FORGIVEN_S = 30.0
# between two questions whether a silent client's process lives
ASK_PERIOD_S = 1.0
IDLE_S = 3.0
WINDOW_BYTES = 8 << 20
MAX_REQUEST_BYTES = 256 << 10
COALESCE_S = 0.02
SILENT, SLOW = "silent", "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What a replica grants each client.

    Attributes:
        lease_s: seconds that the client may be silent, whatever its process does.
        forgiven_s: seconds that it may be silent while its process lives, or read nothing.
        idle_s: seconds without an open request after which its stream ends itself.
        window_bytes: bytes that may be on their way before more are sent.
        max_request_bytes: bytes of one request that may wait until they can be sent.
        coalesce_s: least seconds between two batches without first output of a request.
        part_s: seconds of these for each open request, where fewer are open; None for all of them,
            however many there are.
    """

    lease_s: float = LEASE_S
    forgiven_s: float = FORGIVEN_S
    idle_s: float = IDLE_S
    window_bytes: int = WINDOW_BYTES
    max_request_bytes: int = MAX_REQUEST_BYTES
    coalesce_s: float = COALESCE_S
    part_s: float | None = None


CLIENT_LIMITS = ClientLimits()


class ClientSession:
    """Open requests, pending output and lease of one client. Lives in one asyncio loop.

    Attributes:
        open: the client's requests.
    """

    def __init__(
        self,
        limits: ClientLimits,
        *,
        on_lost: Callable[[str], None],
        on_full: Callable[[int], None],
        is_alive: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Begin a lease.

        Args:
            on_lost: called with SILENT or SLOW.
            on_full: called with the id of a request that has too much waiting; it is to be ended.
            is_alive: finds out whether the client's process lives; None if nobody knows.
        """
        self.open = OpenChoices()
        self._limits = limits
        self._on_lost = on_lost
        self._on_full = on_full
        self._is_alive = is_alive
        # requests that have had no output yet
        self._unanswered: set[int] = set()
        self._messages: list[bytes] = []
        # bytes of each request that wait because none may be sent
        self._held_bytes: Counter[int] = Counter()
        self._sent_bytes = 0
        self._received_bytes = 0
        self._wake_up = asyncio.Event()
        self._stream = 0
        self._is_attached = False
        self._end: EngineError | None = None
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._read_s = self._loop.time()
        self._taken_s = -limits.coalesce_s
        self._timer = self._loop.call_later(limits.lease_s, self._check_lease)
        self._flush: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def put(self, message: bytes, request_ids: Iterable[int]) -> None:
        """Queue an encoded output for the stream.

        Args:
            request_ids: of the requests in it; those of other clients may be among them.
        """
        self._messages.append(message)
        self._schedule_batch(self._note_first_output(request_ids))
        if not self._may_send:
            self._hold(len(message), request_ids)

    @property
    def undelivered_bytes(self) -> int:
        """Bytes that are queued, or that the client has not said to have read."""
        num_queued = sum(map(len, self._messages))
        return num_queued + self._sent_bytes - self._received_bytes

    def opened(self, request_id: int, num_choices: int) -> None:
        """Note an accepted request; its client has `lease_s` from now to attach."""
        self.open.open(request_id, num_choices)
        self._unanswered.add(request_id)
        self._heard_s = self._loop.time()
        self._wake_up.set()

    def renew(self, received_bytes: int) -> None:
        """Note that the client lives and has read this much of its stream.

        Ignored while no stream is attached: then no output reaches the client.
        """
        if self._is_attached:
            self._heard_s = self._loop.time()
            before = self._received_bytes
            # a call that was made for an earlier stream may come late
            self._received_bytes = min(received_bytes, self._sent_bytes)
            if self._received_bytes > before:
                self._read_s = self._heard_s
            if self._messages and self._may_send:
                self._wake_up.set()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield everything that is queued, one batch at a time, until the client has been idle.

        A second stream takes over from the first.

        Raises:
            EngineError: if the session is closed.
        """
        self._stream += 1
        mine = self._stream
        self._is_attached = True
        self._sent_bytes = self._received_bytes = 0
        self._heard_s = self._read_s = self._loop.time()
        # an earlier stream ends now
        self._wake_up.set()
        try:
            while await self._wait_for_output() and mine == self._stream:
                if self._messages and self._may_send:
                    yield self._take_batch()
        finally:
            if mine == self._stream:
                self._is_attached = False

    def close(self, reason: str) -> None:
        """End the stream with an error, and the lease; what is queued is dropped."""
        self._end = EngineError(reason)
        self._messages.clear()
        self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self._stop_gathering()
        self._wake_up.set()

    def _take_batch(self) -> bytes:
        batch = encode_batch(self._messages)
        self._messages.clear()
        self._held_bytes.clear()
        if self._sent_bytes == self._received_bytes:
            # until now there was nothing to read
            self._read_s = self._loop.time()
        self._sent_bytes += len(batch)
        self._taken_s = self._loop.time()
        self._stop_gathering()
        self._wake_up.clear()
        return batch

    @property
    def _may_send(self) -> bool:
        """Whether a stream is there, and less than the window is on its way."""
        on_their_way = self._sent_bytes - self._received_bytes
        return self._is_attached and on_their_way < self._limits.window_bytes

    def _hold(self, num_bytes: int, request_ids: Iterable[int]) -> None:
        """Count a message that has to wait, in equal parts, for the requests in it."""
        own = [request_id for request_id in request_ids if request_id in self.open]
        for request_id in own:
            self._held_bytes[request_id] += num_bytes // len(own)
        limit = self._limits.max_request_bytes
        for request_id in [each for each in own if self._held_bytes[each] > limit]:
            del self._held_bytes[request_id]
            self._on_full(request_id)

    def _note_first_output(self, request_ids: Iterable[int]) -> bool:
        """Whether one of this client's requests has its first output now."""
        firsts = self._unanswered.intersection(request_ids) if self._unanswered else ()
        self._unanswered.difference_update(firsts)
        return bool(firsts)

    def _schedule_batch(self, is_urgent: bool) -> None:
        """Wake the stream at once, or when enough time has passed since its last batch."""
        wait_s = 0.0 if is_urgent else self._taken_s + self._gather_s - self._loop.time()
        if wait_s <= 0:
            self._wake_up.set()
        elif self._flush is None:
            self._flush = self._loop.call_later(wait_s, self._wake_up.set)

    @property
    def _gather_s(self) -> float:
        """Least seconds between two batches, with as many requests as there are."""
        limits = self._limits
        if limits.part_s is None:
            return limits.coalesce_s
        return min(limits.coalesce_s, limits.part_s * len(self.open))

    def _stop_gathering(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    async def _wait_for_output(self) -> bool:
        """Wait until there may be a message; False when the client has been idle for `idle_s`."""
        self._check_open()
        if not self._messages or not self._may_send:
            self._wake_up.clear()
        try:
            async with asyncio.timeout(None if self.open else self._limits.idle_s):
                await self._wake_up.wait()
        except TimeoutError:
            return bool(self._messages)
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end

    def _check_lease(self) -> None:
        silent_s, unread_s = (self._loop.time() - at for at in (self._heard_s, self._read_s))
        is_full = self._is_attached and not self._may_send
        if is_full and unread_s >= self._limits.forgiven_s:
            self._on_lost(SLOW)
            return
        left_s = self._limits.lease_s - silent_s
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_lease)
        elif self.open and self._is_alive is not None and silent_s < self._limits.forgiven_s:
            ask = self._ask(self._is_alive)
            # not in the context of the request that happened to come first
            self._asking = self._loop.create_task(ask, context=contextvars.Context())
        else:
            self._on_lost(SILENT)

    async def _ask(self, is_alive: Callable[[], Awaitable[bool]]) -> None:
        lives = await is_alive()
        self._asking = None
        if self._loop.time() - self._heard_s < self._limits.lease_s:
            self._check_lease()
        elif lives:
            self._timer = self._loop.call_later(ASK_PERIOD_S, self._check_lease)
        else:
            self._on_lost(SILENT)
