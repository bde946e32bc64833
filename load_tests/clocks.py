"""The time of a replay: virtual where nothing is computed, the machine's where something is."""

import time
from typing import Protocol


class Clock(Protocol):
    """The time of a replay in seconds, from 0 on."""

    def now_s(self) -> float:
        """What it shows."""
        ...

    def spend(self, seconds: float) -> None:
        """A step has ended that took the workers so long."""
        ...

    def skip_to(self, at_s: float) -> None:
        """Nothing happens until then."""
        ...


class VirtualClock:
    """Time that passes by what steps are said to take."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """See `Clock`."""
        return self._now_s

    def spend(self, seconds: float) -> None:
        """See `Clock`."""
        self._now_s += seconds

    def skip_to(self, at_s: float) -> None:
        """See `Clock`."""
        self._now_s = at_s


class WallClock:
    """The machine's time, from which times without work are cut out instead of waited for."""

    def __init__(self) -> None:
        self._start_s = time.perf_counter()

    def now_s(self) -> float:
        """See `Clock`."""
        return time.perf_counter() - self._start_s

    def spend(self, seconds: float) -> None:
        """See `Clock`; it has passed by itself."""

    def skip_to(self, at_s: float) -> None:
        """See `Clock`."""
        self._start_s -= max(0.0, at_s - self.now_s())
