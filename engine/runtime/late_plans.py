"""Has the next plan made as late as the device bears, so that who comes meanwhile is in it."""

import time
from collections.abc import Callable
from typing import Protocol

from engine.executor.channel import Channel
from engine.executor.gang import Submission
from engine.executor.longest_of_late import LongestOfLate

# beside the longest times of late; a message on its way and a thread that wakes up take a tenth
_SPARE_S = 0.0005


class PacedScheduler(Protocol):
    """What is asked of the scheduler; `Scheduler` describes it."""

    @property
    def has_prompts(self) -> bool: ...
    def busy_until_s(self) -> float: ...


class PacedExecutor(Protocol):
    """What is asked of an executor; `GangExecutor` describes it."""

    enqueueing: LongestOfLate
    submission: Submission

    def wait(self, seconds: float, other: Channel) -> bool: ...


class LatePlans:
    """Holds the loop of an engine while its device is busy and needs no further plan yet.

    A plan that is made when the step before it begins leaves out everybody who comes during that
    step: they wait for its end, and for all of the planned one. So it is made only when planning
    it, sending it and handing it to the device take, by the longest times of late, as long as the
    device still has work. A prompt that comes makes the next plan one that takes longer, and ends
    the hold where that leaves no time. Where handing over takes as long as a step, as on a CPU,
    nothing is held.
    """

    def __init__(
        self,
        scheduler: PacedScheduler,
        executor: PacedExecutor,
        commands: Channel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a hold.

        Args:
            commands: by which requests come.
            clock: that of all times.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._commands = commands
        self._clock = clock
        self._planning = LongestOfLate()
        self._released_s = clock()

    def hold(self) -> bool:
        """Wait until the next plan is due, a result is there, or a command has come.

        Never without plans in flight.

        Returns:
            Whether to plan; if not, the command may change when the plan is due.
        """
        submission, has_prompts = self._executor.submission, self._scheduler.has_prompts
        if submission.at_s > self._released_s:
            taken_s = submission.at_s - self._released_s
            self._planning.add(taken_s, has_prompts=submission.has_prompts)
        lead_s = self._lead_s(has_prompts=has_prompts)
        left_s = self._scheduler.busy_until_s() - lead_s - self._clock()
        has_command = left_s > 0.0 and self._executor.wait(left_s, self._commands)
        self._released_s = self._clock()
        return not has_command

    def _lead_s(self, *, has_prompts: bool) -> float:
        """How long before the device has nothing to do a plan is to be begun."""
        planning_s = self._planning.seconds(has_prompts=has_prompts)
        return planning_s + self._executor.enqueueing.seconds(has_prompts=has_prompts) + _SPARE_S
