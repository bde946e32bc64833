"""The time of a replay: virtual where nothing is computed, the machine's where something is."""

import time
from collections.abc import Callable
from typing import Protocol

from engine.config import Device

Timer = Callable[[], float]


def timer_of(device: Device) -> Timer:
    """What times the work of a device: on a CPU the seconds that this process computes.

    So a shared machine measures the same as one that is free; a GPU is not shared.
    """
    return time.process_time if device == "cpu" else time.perf_counter


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


class LiveClock:
    """Time that passes by itself, from which times without work are cut out, not waited for."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._start_s = timer()

    def now_s(self) -> float:
        """See `Clock`."""
        return self._timer() - self._start_s

    def spend(self, seconds: float) -> None:
        """See `Clock`; it has passed by itself."""

    def skip_to(self, at_s: float) -> None:
        """See `Clock`."""
        self._start_s -= max(0.0, at_s - self.now_s())
