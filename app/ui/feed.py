"""The numbers that the page shows: asked for once for all viewers, and only while there are any."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.ui.audience import Audience
from app.ui.events import EventLog
from app.ui.frames import frame_of
from app.ui.page_options import PageOptions
from engine.errors import ServeError
from engine.runtime.messages import REPLICA_VIEWS, SNAPSHOTS, ReplicaView
from engine.runtime.metrics.metric_store import Series, decode_series
from engine.types import EngineSnapshot

logger = logging.getLogger(__name__)

# a stream that is open holds up the end of its ingress; the page begins another one
MAX_STREAM_S = 600.0

# asks all replicas: number of the first event that is not known, by tag -> encoded `ReplicaView`s
AskViews = Callable[[Mapping[str, int]], Awaitable[Sequence[bytes]]]


class TooManyViewers(Exception):
    """So many look already as may."""


@dataclass(frozen=True, slots=True)
class _SeenReplica:
    view: ReplicaView
    snapshot: EngineSnapshot | None
    series: Sequence[Series]


class Feed:
    """Frames for all viewers of one ingress replica.

    While nobody looks nothing is asked. All who may see the same get the same bytes; who reads
    slowly gets the latest frame, and no others.
    """

    def __init__(self, ask: AskViews, options: PageOptions) -> None:
        """Args: ask: see `AskViews`."""
        self._ask = ask
        self._options = options
        self._periods_s: dict[object, float] = {}
        self._asking: asyncio.Task[None] | None = None
        self._number = 0
        self._has_new = asyncio.Condition()
        self._seen: list[_SeenReplica] = []
        self._encoded: dict[Audience, bytes] = {}
        self._next_events: dict[str, int] = {}
        self._log = EventLog()
        self._is_closed = False

    @property
    def num_viewers(self) -> int:
        """Streams that are open."""
        return len(self._periods_s)

    def open(self, audience: Audience, hz: float) -> AsyncIterator[bytes]:
        """Return a stream of server-sent events: `hello`, then `frame` and `events`.

        Args:
            hz: frames that the viewer wants in a second; no more than the options allow.

        Raises:
            TooManyViewers: if no more may look.
        """
        if not self._has_room:
            raise TooManyViewers
        return self._stream(audience, 1 / min(max(hz, 0.1), self._options.max_hz))

    async def close(self) -> None:
        """End all streams; the ingress is about to stop."""
        self._is_closed = True
        async with self._has_new:
            self._has_new.notify_all()

    @property
    def _has_room(self) -> bool:
        return self.num_viewers < self._options.max_viewers and not self._is_closed

    async def _stream(self, audience: Audience, period_s: float) -> AsyncIterator[bytes]:
        # a stream that is never begun takes no place; others may have begun meanwhile
        if not self._has_room:
            return
        viewer, loop = object(), asyncio.get_running_loop()
        self._periods_s[viewer] = period_s
        end_s, next_event = loop.time() + MAX_STREAM_S, 0
        try:
            if self._asking is None:
                self._begin()
            seen = -1 if self._seen else self._number
            yield _event("hello", self._hello(audience))
            while loop.time() < end_s:
                await self._wait_for_frame(seen)
                if self._is_closed:
                    return
                seen, started_s = self._number, loop.time()
                # together: each chunk costs on its way whatever it holds
                events = self._log.since(next_event, audience)
                yield self._frame(audience) + (_event("events", events) if events else b"")
                next_event = self._log.next_number
                # a little less than the period, so as not to miss a frame that comes in time
                await asyncio.sleep(started_s + 0.9 * period_s - loop.time())
        finally:
            self._leave(viewer)

    async def _wait_for_frame(self, seen: int) -> None:
        async with self._has_new:
            await self._has_new.wait_for(lambda: self._number != seen or self._is_closed)

    def _leave(self, viewer: object) -> None:
        self._periods_s.pop(viewer, None)
        if not self._periods_s and self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _begin(self) -> None:
        """Ask from now on; what was seen by earlier viewers is old."""
        self._seen, self._log, self._encoded = [], EventLog(), {}
        self._next_events.clear()
        # not as part of the request that happens to come first
        self._asking = asyncio.create_task(self._keep_asking())

    async def _keep_asking(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            await self._ask_once()
            async with self._has_new:
                self._number += 1
                self._has_new.notify_all()
            period_s = min(self._periods_s.values(), default=1.0)
            await asyncio.sleep(max(0.05, started_s + period_s - loop.time()))

    async def _ask_once(self) -> None:
        try:
            answers = await self._ask(self._next_events)
            self._seen = sorted(map(_decode, answers), key=lambda each: each.view.replica)
        except ServeError as error:
            # whoever looks sees that nobody answers
            logger.debug("no_views error=%r", error)
            self._seen = []
        self._encoded = {}
        for each in self._seen:
            self._next_events[each.view.replica] = each.view.next_event
            self._log.take(each.view, each.snapshot)

    def _frame(self, audience: Audience) -> bytes:
        if audience not in self._encoded:
            replicas = [
                frame_of(
                    each.view.replica,
                    each.snapshot,
                    each.series,
                    audience,
                    is_ready=each.view.is_ready,
                )
                for each in self._seen
            ]
            self._encoded[audience] = _event("frame", {"replicas": replicas})
        return self._encoded[audience]

    def _hello(self, audience: Audience) -> dict[str, Any]:
        return {
            **self._options.facts,
            "is_operator": audience.is_operator,
            "max_hz": self._options.max_hz,
        }


def _decode(data: bytes) -> _SeenReplica:
    view = REPLICA_VIEWS.decode(data)
    snapshot = SNAPSHOTS.decode(view.snapshot) if view.snapshot else None
    return _SeenReplica(view, snapshot, decode_series(view.series))


def _event(name: str, content: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))
