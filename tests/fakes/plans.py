"""Plans for two or three rows, and the tokens that they must give."""

from array import array
from dataclasses import replace
from functools import reduce

from engine.types import (
    Capacity,
    IntColumn,
    RowAdmission,
    SamplingParams,
    StepPlan,
    int32,
)
from tests.fakes.symbolic_executor import EMPTY_PREFIX, SymbolicExecutor, SymbolicModel, extend_hash

CAPACITY = Capacity(num_blocks=6, block_size=2, num_rows=3, num_swap_blocks=6)
SAMPLING = SamplingParams(max_tokens=8, seed=5)


MODEL = SymbolicModel(100)


def make_executor(run_ahead: int = 1) -> SymbolicExecutor:
    return SymbolicExecutor(CAPACITY, MODEL, run_ahead=run_ahead)


def prefill(step: int, row: int, prompt: list[int], blocks: list[int]) -> StepPlan:
    """Admits a row and feeds its whole prompt."""
    return StepPlan(
        step=step,
        admissions=[RowAdmission(row=row, sampling=SAMPLING)],
        append_rows=int32([row] * len(blocks)),
        append_indices=int32(list(range(len(blocks)))),
        append_blocks=int32(blocks),
        prefill_rows=int32([row]),
        prefill_starts=int32([0]),
        prefill_counts=int32([len(prompt)]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32(prompt),
    )


def decode(step: int, *rows: int) -> StepPlan:
    return StepPlan(step=step, decode_rows=int32(rows))


def append(plan: StepPlan, row: int, index: int, block: int) -> StepPlan:
    return replace(
        plan,
        append_rows=int32([row]),
        append_indices=int32([index]),
        append_blocks=int32([block]),
    )


def run(executor: SymbolicExecutor, *plans: StepPlan) -> list[IntColumn]:
    """Tokens of each plan, one after the other."""
    tokens = []
    for plan in plans:
        executor.submit(plan)
        tokens.append(executor.collect().tokens)
    return tokens


def hash_of(tokens: list[int]) -> int:
    return reduce(extend_hash, tokens, EMPTY_PREFIX)


def expected_tokens(prompt: list[int], count: int, choice: int = 0) -> list[int]:
    prefix = hash_of(prompt)
    tokens = []
    for _ in range(count):
        tokens.append(MODEL.sample(prefix, SAMPLING.seed + choice))
        prefix = extend_hash(prefix, tokens[-1])
    return tokens
