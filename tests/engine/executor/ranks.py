"""What a gang and its ranks are given to do."""

from array import array

from engine.types import Capacity, RowAdmission, SamplingParams, StepPlan, int32
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
