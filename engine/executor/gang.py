"""The executor of a served replica: every rank is a process of its own, with a channel to each.

All ranks get every plan, and each answers: rank 0 with the result, all with checksums of the plan
and of what they sampled. So the death or an error of any rank is noticed in the step where it
happens, and so is a rank that computes something else than the others.
"""

import selectors
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from zlib import crc32

from engine.errors import EngineError, InvariantViolated, RanksDiverged, WorkerDied
from engine.executor.channel import Channel, ChannelClosed
from engine.executor.codec import Codec
from engine.executor.longest_of_late import LongestOfLate
from engine.types import Capacity, IntColumn, StepPlan, StepResult, int32


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReply:
    """A rank's answer to a plan.

    Attributes:
        plan_checksum: 32 bits of the plan's bytes, as they arrived.
        result_checksum: 32 bits of the rows and tokens that the rank sampled.
        result: of rank 0 only.
        spoiled_slots: what this rank did not find in its swap space, see `StepResult`.
        enqueue_s: seconds from the arrival of the plan until the device had its work.
        error: why the step failed; empty where it did not.
    """

    step: int
    plan_checksum: int = 0
    result_checksum: int = 0
    result: StepResult | None = None
    spoiled_slots: IntColumn = field(default_factory=int32)
    enqueue_s: float = field(default=0.0, compare=False)
    error: str = ""


class Submission(NamedTuple):
    """When a plan was sent, on the clock of `time.monotonic`, and whether it has prompts."""

    at_s: float
    has_prompts: bool


PLANS = Codec(StepPlan)
REPLIES = Codec(RankReply)


def reply_to(
    message: bytes, result: StepResult, *, with_result: bool, enqueue_s: float = 0.0
) -> RankReply:
    """A rank's answer to the plan in `message`, with the result or with its checksum only."""
    return RankReply(
        step=result.step,
        plan_checksum=crc32(message),
        result_checksum=crc32(result.tokens, crc32(result.rows)),
        result=result if with_result else None,
        spoiled_slots=result.spoiled_slots,
        enqueue_s=enqueue_s,
    )


def _spoiled_anywhere(replies: Sequence[RankReply]) -> IntColumn:
    """The slots that are spoiled on any rank: all ranks must recompute what they held."""
    return int32(sorted({slot for reply in replies for slot in reply.spoiled_slots}))


class GangExecutor:
    """Send every plan to all ranks, then wait until all have answered.

    Implements `engine.core.executor.Executor`.

    Attributes:
        enqueueing: how long ranks take at the most to hand a plan to their device.
        submission: of the latest plan.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        capacity: Capacity,
        *,
        run_ahead: int,
        step_deadline_s: float,
    ) -> None:
        """Take over the channels; rank 0 is the first.

        Args:
            step_deadline_s: seconds after which a step without an answer counts as a death.
        """
        self.capacity = capacity
        self.run_ahead = run_ahead
        self.enqueueing = LongestOfLate()
        self.submission = Submission(0.0, has_prompts=False)
        self._channels = channels
        self._step_deadline_s = step_deadline_s
        # number and checksum of the plans in flight, and whether they have prompts
        self._plans: deque[tuple[int, int, bool]] = deque()
        self._replies: list[deque[RankReply]] = [deque() for _ in channels]
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
        has_prompts = bool(plan.prefill_rows)
        self._plans.append((plan.step, crc32(message), has_prompts))
        self.submission = Submission(time.monotonic(), has_prompts)

    def wait(self, seconds: float, other: Channel) -> bool:
        """Wait so long, or until an answer or a message of another channel arrives.

        Returns:
            Whether a message has arrived there, and no answer.
        """
        if any(self._replies):
            return False
        self._selector.register(other, selectors.EVENT_READ, None)
        try:
            ready = self._selector.select(seconds)
        finally:
            self._selector.unregister(other)
        return bool(ready) and all(key.data is None for key, _ in ready)

    def collect(self) -> StepResult:
        """Wait for all ranks' answers to the oldest plan.

        Raises:
            WorkerDied: if a rank is gone or late.
            RanksDiverged: if a rank got another plan, or sampled other tokens than rank 0.
            EngineError: if a rank failed in the step.
        """
        step, checksum, has_prompts = self._plans.popleft()
        self._await_replies(step)
        replies = [queue.popleft() for queue in self._replies]
        if any(reply.step != step for reply in replies):
            raise InvariantViolated(
                f"step {step} was answered with {[reply.step for reply in replies]}"
            )
        _compare(checksum, replies)
        latest_s = max(reply.enqueue_s for reply in replies)
        self.enqueueing.add(latest_s, has_prompts=has_prompts)
        result = replies[0].result
        if result is None:
            raise InvariantViolated(f"rank 0 gave no result for step {step}")
        spoiled_slots = _spoiled_anywhere(replies)
        return replace(result, spoiled_slots=spoiled_slots) if spoiled_slots else result

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
                if reply.error:
                    raise EngineError(f"rank {rank} failed in step {reply.step}: {reply.error}")
                self._replies[rank].append(reply)
        except ChannelClosed as error:
            raise WorkerDied(f"rank {rank} died") from error


def _compare(plan_checksum: int, replies: Sequence[RankReply]) -> None:
    """Check that all ranks have carried out the same plan, and sampled the same.

    Raises:
        RanksDiverged: naming the rank and the step.
    """
    for rank, reply in enumerate(replies):
        if reply.plan_checksum != plan_checksum:
            raise RanksDiverged(f"rank {rank} got another plan than was sent in step {reply.step}")
        if reply.result_checksum != replies[0].result_checksum:
            raise RanksDiverged(
                f"rank {rank} sampled other tokens than rank 0 in step {reply.step}"
            )
