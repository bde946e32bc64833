"""What people see who look at a replica: a snapshot of its scheduler, and what has happened since.

Nothing is asked, kept or computed while nobody looks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from engine.runtime.messages import COMMANDS, REPLICA_VIEWS, EngineQuestion, ReplicaView
from engine.runtime.metrics.metric_store import Series, encode_series
from engine.types import EventKind, Request, RequestEvents, StepOutput, int8, int64

# whoever looks asks at least that often
LEASE_S = 5.0
# snapshots are at least so far apart, whoever asks how often
MIN_PERIOD_S = 0.2
# a step may be long; a frame without a snapshot comes after that
ANSWER_S = 1.0
MAX_EVENTS = 4096


class _Event(NamedTuple):
    request_id: int
    kind: EventKind
    time_us: int
    account: bytes | None


class LiveView:
    """Answers those who look at a replica, all of them by the same snapshot. Lives in one loop."""

    def __init__(
        self,
        replica: str,
        *,
        send: Callable[[bytes], None],
        open_events: Callable[[], Iterable[tuple[int, EventKind, int]]],
    ) -> None:
        """Wait for somebody to look.

        Args:
            replica: tag of the replica.
            send: passes a command to the scheduler.
            open_events: see `RequestTimes`.
        """
        self._replica = replica
        self._send = send
        self._open_events = open_events
        self._loop = asyncio.get_running_loop()
        self._looked_s = -LEASE_S
        self._asked_s = -MIN_PERIOD_S
        self._answer: asyncio.Future[bytes] | None = None
        self._snapshot = b""
        self._events: deque[_Event] = deque(maxlen=MAX_EVENTS)
        self._next_event = 0
        self._accounts: dict[int, bytes] = {}

    @property
    def is_watched(self) -> bool:
        """Whether somebody has looked lately."""
        return self._loop.time() - self._looked_s < LEASE_S

    async def view(
        self, first_event: int, series: Callable[[], list[Series]], *, is_ready: bool
    ) -> bytes:
        """Return an encoded `ReplicaView` that is no older than `MIN_PERIOD_S`.

        Args:
            first_event: number of the first event that the caller does not know; 0 at first.
            series: the metrics of the replica.
            is_ready: whether the replica serves.
        """
        if not self.is_watched:
            self._begin()
        self._looked_s = self._loop.time()
        snapshot = await self._fresh_snapshot() if is_ready else b""
        num_new = max(0, min(self._next_event - first_event, len(self._events)))
        # of another life of the replica's process
        if first_event > self._next_event:
            num_new = len(self._events)
        events = list(self._events)[len(self._events) - num_new :]
        view = ReplicaView(
            replica=self._replica,
            is_ready=is_ready,
            snapshot=snapshot,
            events=RequestEvents(
                requests=int64([event.request_id for event in events]),
                kinds=int8([event.kind for event in events]),
                times_us=int64([event.time_us for event in events]),
            ),
            event_accounts=tuple(event.account for event in events),
            next_event=self._next_event,
            series=encode_series(series()),
        )
        return REPLICA_VIEWS.encode(view)

    def accepted(self, request: Request) -> None:
        """Note whose a new request is, while somebody looks."""
        if self.is_watched:
            self._accounts[request.request_id] = request.terms.account

    def observe(self, output: StepOutput) -> None:
        """Keep what has happened to requests, while somebody looks."""
        events = output.events
        if events is None or not self.is_watched:
            return
        for request_id, kind, time_us in zip(
            events.requests, events.kinds, events.times_us, strict=True
        ):
            self._note(request_id, EventKind(kind), time_us)

    def take(self, snapshot: bytes) -> None:
        """Take in the scheduler's answer."""
        self._snapshot = snapshot
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(snapshot)
        self._answer = None

    def lost_gang(self) -> None:
        """Expect no answer of a scheduler that is gone; its requests are over here."""
        self.take(b"")
        self._accounts.clear()

    def _begin(self) -> None:
        self._events.clear()
        self._accounts.clear()
        for event in self._open_events():
            self._note(*event)

    def _note(self, request_id: int, kind: EventKind, time_us: int) -> None:
        is_end = kind is EventKind.ENDED
        find = self._accounts.pop if is_end else self._accounts.get
        self._events.append(_Event(request_id, kind, time_us, find(request_id, None)))
        self._next_event += 1

    async def _fresh_snapshot(self) -> bytes:
        """Return the last answer of the scheduler if it is fresh, else the next.

        One is asked for at a time, whoever waits for it.
        """
        now_s = self._loop.time()
        if self._answer is None:
            if now_s - self._asked_s < MIN_PERIOD_S:
                return self._snapshot
            self._asked_s = now_s
            self._answer = self._loop.create_future()
            self._send(COMMANDS.encode(EngineQuestion.SNAPSHOT))
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer), ANSWER_S)
        except TimeoutError:
            return self._snapshot
