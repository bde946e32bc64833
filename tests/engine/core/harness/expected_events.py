"""What events may follow each other, and what the counts of a step must be then."""

from collections import Counter

from engine.types import EventKind, StepOutput

_FROM = {
    EventKind.QUEUED: {""},
    EventKind.ADMITTED: {"waiting"},
    # a plan that is in flight may end the prefill of a group that was preempted since
    EventKind.PREFILLED: {"waiting", "running", "swapped"},
    EventKind.PREEMPTED_SWAP: {"running"},
    EventKind.PREEMPTED_RECOMPUTE: {"running", "swapped"},
    EventKind.RESUMED: {"waiting", "swapped"},
    EventKind.ENDED: {"waiting", "running", "swapped"},
}
_TO = {
    EventKind.QUEUED: "waiting",
    EventKind.ADMITTED: "running",
    EventKind.PREEMPTED_SWAP: "swapped",
    EventKind.PREEMPTED_RECOMPUTE: "waiting",
    EventKind.RESUMED: "running",
    EventKind.ENDED: "ended",
}


class ExpectedEvents:
    """Follows requests by their events.

    Attributes:
        counts: events by kind.
        admitted: requests that have been in the batch.
    """

    def __init__(self) -> None:
        self.counts: Counter[EventKind] = Counter()
        self.admitted: set[int] = set()
        self._states: dict[int, str] = {}
        self._last_us = 0

    def check(self, output: StepOutput) -> None:
        """Take in the events of an output, after which its counts must be true."""
        if (events := output.events) is not None:
            assert len(events.requests) > 0
            for item in zip(events.requests, events.kinds, events.times_us, strict=True):
                self._take(*item)
        states = Counter(self._states.values())
        stats = output.stats
        assert (states["waiting"], states["running"], states["swapped"]) == (
            stats.num_waiting,
            stats.num_running,
            stats.num_swapped,
        )

    def has_ended(self, request_id: int) -> bool:
        """Whether the end of a request has been an event."""
        return self._states[request_id] == "ended"

    def _take(self, request_id: int, number: int, time_us: int) -> None:
        kind = EventKind(number)
        assert self._states.get(request_id, "") in _FROM[kind], (request_id, kind)
        # it is admitted once, and what comes back has been
        assert (request_id in self.admitted) or kind is not EventKind.RESUMED
        assert (request_id not in self.admitted) or kind is not EventKind.ADMITTED
        assert time_us >= self._last_us
        self._last_us = time_us
        self._states[request_id] = _TO.get(kind, self._states.get(request_id, ""))
        self.counts[kind] += 1
        if kind is EventKind.ADMITTED:
            self.admitted.add(request_id)
