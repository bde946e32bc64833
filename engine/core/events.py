"""What happens to requests, and when: the one source of metrics, traces and timelines."""

from engine.types import EventKind, RequestEvents, int8, int64


class Events:
    """The events since the last output, in columns.

    An event is noted where it happens, by code that has no clock, and gets its time when the call
    of the scheduler that it is part of ends.
    """

    def __init__(self, epoch_s: float = 0.0) -> None:
        """Args: epoch_s: seconds since the epoch at 0 of the clock that drives the engine."""
        self._epoch_s = epoch_s
        self._clear()

    def note(self, request_id: int, kind: EventKind) -> None:
        """Add an event, which `stamp` gives its time."""
        self._requests.append(request_id)
        self._kinds.append(kind)

    def stamp(self, now_s: float) -> None:
        """Give their time to all events that have none."""
        missing = len(self._requests) - len(self._times)
        if missing:
            self._times.extend([self.time_us(now_s)] * missing)

    def time_us(self, now_s: float) -> int:
        """Microseconds since the epoch."""
        return round(1e6 * (self._epoch_s + now_s))

    def take(self) -> RequestEvents | None:
        """Return what there is, all of which has been stamped, and start anew."""
        if not self._requests:
            return None
        taken = RequestEvents(requests=self._requests, kinds=self._kinds, times_us=self._times)
        self._clear()
        return taken

    def _clear(self) -> None:
        self._requests = int64()
        self._kinds = int8()
        self._times = int64()
