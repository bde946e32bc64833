"""How long requests queue, prefill, decode and are preempted, from their events."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from engine.runtime.metrics.engine_table import (
    DECODE_S,
    PREEMPTED_S,
    PREEMPTIONS,
    PREFILL_S,
    QUEUE_S,
)
from engine.runtime.metrics.metric import Metric
from engine.runtime.metrics.metric_store import MetricStore
from engine.types import EventKind, RequestEvents

_PREEMPTED = {EventKind.PREEMPTED_SWAP: "swap", EventKind.PREEMPTED_RECOMPUTE: "recompute"}


@dataclass(slots=True)
class _Times:
    """Microseconds; 0 for what has not happened, or is over."""

    queued: int = 0
    admitted: int = 0
    prefilled: int = 0
    preempted: int = 0
    # of all preemptions since the first token
    away: int = 0


class RequestTimes:
    """Measures the phases of a request as its events come."""

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._open: dict[int, _Times] = {}

    def observe(self, events: RequestEvents, own: Container[int]) -> None:
        """Take in the events of a step, but for those of the replica's own requests."""
        for request_id, number, time_us in zip(
            events.requests, events.kinds, events.times_us, strict=True
        ):
            if request_id not in own:
                self._take(request_id, EventKind(number), time_us)

    def open_events(self) -> Iterator[tuple[int, EventKind, int]]:
        """Yield what is known of open requests: id, kind and microseconds since the epoch.

        Of preemptions only the last, while it lasts, which is given as a recomputation.
        """
        for request_id, times in self._open.items():
            known = (
                (EventKind.QUEUED, times.queued),
                (EventKind.ADMITTED, times.admitted),
                (EventKind.PREFILLED, times.prefilled),
                (EventKind.PREEMPTED_RECOMPUTE, times.preempted),
            )
            yield from ((request_id, kind, time_us) for kind, time_us in known if time_us)

    def clear(self) -> None:
        """Forget the requests of a scheduler that is lost."""
        self._open.clear()

    def _take(self, request_id: int, kind: EventKind, time_us: int) -> None:
        if kind is EventKind.ENDED:
            self._end(self._open.pop(request_id, _Times()), time_us)
            return
        times = self._open.setdefault(request_id, _Times())
        if kind is EventKind.QUEUED:
            times.queued = time_us
        elif kind is EventKind.ADMITTED:
            times.admitted = time_us
            self._observe_s(QUEUE_S, time_us - times.queued)
        elif kind is EventKind.PREFILLED:
            # a recomputed request is prefilled again
            if not times.prefilled:
                times.prefilled = time_us
                self._observe_s(PREFILL_S, time_us - times.admitted)
        elif kind is EventKind.RESUMED:
            self._return(times, time_us)
        else:
            # one that is swapped out may have to be recomputed instead: it is away all along
            times.preempted = times.preempted or time_us
            self._store.add(PREEMPTIONS, 1, _PREEMPTED[kind])

    def _return(self, times: _Times, time_us: int) -> None:
        if not times.preempted:
            return
        self._observe_s(PREEMPTED_S, time_us - times.preempted)
        if times.prefilled:
            times.away += time_us - max(times.preempted, times.prefilled)
        times.preempted = 0

    def _end(self, times: _Times, time_us: int) -> None:
        self._return(times, time_us)
        if times.prefilled:
            self._observe_s(DECODE_S, time_us - times.prefilled - times.away)

    def _observe_s(self, metric: Metric, microseconds: int) -> None:
        self._store.observe(metric, microseconds / 1e6)
