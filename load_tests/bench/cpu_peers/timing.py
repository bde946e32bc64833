"""Wall-clock and CPU time of repeated work, as medians with their spread."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that one piece of work took; CPU seconds are of all threads of this process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Output tokens per second over several repeats.

    Attributes:
        median, low, high: by the clock on the wall.
        cpu_median: per second of CPU time; None where the work was done by other processes.
    """

    median: float
    low: float
    high: float
    cpu_median: float | None = None


def timed(work: Callable[[], object]) -> Timing:
    """Time one call."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Timing(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def speed(num_tokens: int, timings: Sequence[Timing]) -> Speed:
    """Turn repeats of the same amount of work into tokens per second."""
    rates = [num_tokens / timing.wall_s for timing in timings]
    return Speed(
        median=median(rates),
        low=min(rates),
        high=max(rates),
        cpu_median=median(num_tokens / timing.cpu_s for timing in timings),
    )
