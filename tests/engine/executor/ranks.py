"""What a gang and its ranks are given to do."""

from array import array
from dataclasses import dataclass, field

from engine.executor.gang import PLANS, RankReply, reply_to
from engine.types import Capacity, RowAdmission, SamplingParams, StepPlan, StepResult, int32
from tests.fakes import scripted_worker as scripted

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)
FIRST_TOKEN = scripted.continuation([5], 1)


def prefill(step: int, token: int = 5) -> StepPlan:
    """A prompt of one token; each step begins with a row of its own."""
    return StepPlan(
        step=step,
        releases=int32([0] if step else []),
        admissions=[RowAdmission(row=0, sampling=SamplingParams(max_tokens=1))],
        append_rows=int32([0]),
        append_indices=int32([0]),
        append_blocks=int32([3]),
        prefill_rows=int32([0]),
        prefill_starts=int32([0]),
        prefill_counts=int32([1]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32([token]),
    )


@dataclass
class Recorder:
    """Notes what happens to it, and fails on demand.

    Attributes:
        fails_in: steps whose result does not come.
        cannot_begin: steps that are refused.
        spoiled_slots: of every step.
    """

    fails_in: tuple[int, ...] = ()
    cannot_begin: tuple[int, ...] = ()
    spoiled_slots: tuple[int, ...] = ()
    capacity: Capacity = CAPACITY
    steps: list[int] = field(default_factory=list)
    is_closed: bool = False

    def enqueue(self, plan: StepPlan) -> "Recorded":
        self.steps.append(plan.step)
        if plan.step in self.cannot_begin:
            raise ValueError(f"no step {plan.step}")
        return Recorded(plan.step, plan.step in self.fails_in, self.spoiled_slots)

    def close(self) -> None:
        self.is_closed = True


@dataclass(frozen=True)
class Recorded:
    step: int
    fails: bool
    spoiled_slots: tuple[int, ...]

    def result(self) -> StepResult:
        if self.fails:
            raise ValueError(f"lost step {self.step}")
        return StepResult(
            step=self.step,
            tokens=int32([self.step + 40]),
            spoiled_slots=int32(self.spoiled_slots),
        )


def reply_of(step: int, *, is_first: bool = True) -> RankReply:
    """What a rank answers to the plan of a step that a recorder has executed."""
    result = StepResult(step=step, tokens=int32([step + 40]))
    return reply_to(PLANS.encode(prefill(step)), result, with_result=is_first)
