"""The executor of a served replica: every rank is a process of its own, with a channel to each.

All ranks get every plan. Rank 0 answers with the result, the others with the number of the step, so
that the death or an error of any rank is noticed in the step where it happens.
"""

import selectors
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from engine.errors import EngineError, InvariantViolated, WorkerDied
from engine.executor.channel import Channel, ChannelClosed
from engine.executor.codec import Codec
from engine.types import Capacity, StepPlan, StepResult, int32

STEP_DEADLINE_S = 30.0


PLANS = Codec(StepPlan)
# a rank's answer to a plan: rank 0's result, the others' number of the step, or a result without
# tokens that names spoiled slots, or an error's text
REPLIES: Codec[StepResult | int | str] = Codec(StepResult | int | str)


def _merged(result: StepResult, others: Sequence[StepResult]) -> StepResult:
    """The result of a step, with the slots that are spoiled on any rank."""
    if not others:
        return result
    slots = {slot for each in (result, *others) for slot in each.spoiled_slots}
    return replace(result, spoiled_slots=int32(sorted(slots)))


class GangExecutor:
    """Send every plan to all ranks, then wait until all have answered.

    Implements `engine.core.executor.Executor`.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        capacity: Capacity,
        *,
        run_ahead: int,
        step_deadline_s: float = STEP_DEADLINE_S,
    ) -> None:
        """Take over the channels; rank 0 is the first.

        Args:
            step_deadline_s: seconds after which a step without an answer counts as a death.
        """
        self.capacity = capacity
        self.run_ahead = run_ahead
        self._channels = channels
        self._step_deadline_s = step_deadline_s
        self._steps: deque[int] = deque()
        self._replies: list[deque[StepResult | int]] = [deque() for _ in channels]
        self._selector = selectors.DefaultSelector()
        for rank, channel in enumerate(channels):
            self._selector.register(channel, selectors.EVENT_READ, rank)

    def submit(self, plan: StepPlan) -> None:
        """Hand a plan to all ranks without waiting for it.

        Raises:
            WorkerDied: if a rank is gone.
        """
        message = PLANS.encode(plan)
        for rank, channel in enumerate(self._channels):
            try:
                channel.send(message)
            except ChannelClosed as error:
                raise WorkerDied(f"rank {rank} died before step {plan.step}") from error
        self._steps.append(plan.step)

    def collect(self) -> StepResult:
        """Wait for all ranks' answers to the oldest plan.

        Raises:
            WorkerDied: if a rank is gone or late.
            EngineError: if a rank failed in the step.
        """
        step = self._steps.popleft()
        self._await_replies(step)
        result, *others = [queue.popleft() for queue in self._replies]
        if not isinstance(result, StepResult):
            raise InvariantViolated(f"rank 0 gave no result for step {step}")
        steps = [each.step if isinstance(each, StepResult) else each for each in others]
        if any(answer != step for answer in (result.step, *steps)):
            raise InvariantViolated(f"step {step} was answered with {[result.step, *steps]}")
        return _merged(result, [each for each in others if isinstance(each, StepResult)])

    def close(self) -> None:
        """Close the channels, which ends the ranks; plans in flight are dropped."""
        self._selector.close()
        for channel in self._channels:
            channel.close()

    def _await_replies(self, step: int) -> None:
        deadline_s = time.monotonic() + self._step_deadline_s
        while late := [rank for rank, queue in enumerate(self._replies) if not queue]:
            ready = self._selector.select(max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise WorkerDied(
                    f"ranks {late} did not answer step {step} in {self._step_deadline_s:g} s"
                )
            for key, _ in ready:
                self._take_replies(key.data)

    def _take_replies(self, rank: int) -> None:
        try:
            while (message := self._channels[rank].try_recv()) is not None:
                reply = REPLIES.decode(message)
                if isinstance(reply, str):
                    raise EngineError(f"rank {rank} failed in {reply}")
                self._replies[rank].append(reply)
        except ChannelClosed as error:
            raise WorkerDied(f"rank {rank} died") from error
