"""Has the next plan made as late as the device bears, so that who comes meanwhile is in it."""

import time
from collections.abc import Callable
from typing import Protocol

# beside the longest times of late; a message on its way and a thread that wakes up take a tenth
_SPARE_S = 0.0005
# what the longest time of planning loses of its weight with each step
_FORGETTING = 0.98


class PacedExecutor(Protocol):
    """What is asked of an executor; `GangExecutor` describes it."""

    enqueue_s: float
    submitted_s: float

    def wait(self, seconds: float) -> None: ...


class LatePlans:
    """Holds the loop of an engine while its device is busy and needs no further plan yet.

    A plan that is made when the step before it begins leaves out everybody who comes during that
    step: they wait for its end, and for all of the planned one. So it is made only when planning
    it, sending it and handing it to the device take, by the longest times of late, as long as the
    device still has work. Where handing over takes as long as a step, as on a CPU, nothing is held.
    """

    def __init__(
        self,
        busy_until_s: Callable[[], float],
        executor: PacedExecutor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a hold.

        Args:
            busy_until_s: see `Scheduler.busy_until_s`.
            clock: that of all times.
        """
        self._busy_until_s = busy_until_s
        self._executor = executor
        self._clock = clock
        self._planning_s = 0.0
        self._released_s = clock()

    def hold(self) -> None:
        """Wait until the next plan is due, or a result is there; never without plans in flight."""
        executor = self._executor
        if executor.submitted_s > self._released_s:
            latest_s = executor.submitted_s - self._released_s
            self._planning_s = max(latest_s, _FORGETTING * self._planning_s)
        lead_s = self._planning_s + executor.enqueue_s + _SPARE_S
        left_s = self._busy_until_s() - lead_s - self._clock()
        if left_s > 0.0:
            executor.wait(left_s)
        self._released_s = self._clock()
