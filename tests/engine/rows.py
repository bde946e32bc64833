"""Row tables and plans small enough to be written by hand."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.types import Capacity, RowAdmission, SamplingParams, StepPlan, int32
from engine.worker.row_table import RowTable
from engine.worker.sampling.grammars import Grammars
from kernels.runtime import HostRuntime

BLOCK_SIZE = 4
NUM_POSITIONS = 64
VOCAB_SIZE = 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some known tokens of a row, from a position on."""

    row: int
    start: int
    tokens: Sequence[int]
    samples: bool = True


def make_table(
    num_rows: int = 4, vocab_size: int = VOCAB_SIZE, windows: tuple[int, ...] = (0,)
) -> RowTable:
    """A table whose rows are all free."""
    return RowTable(
        Capacity(num_blocks=1, block_size=BLOCK_SIZE, num_rows=num_rows, windows=windows),
        NUM_POSITIONS,
        vocab_size=vocab_size,
        runtime=HostRuntime(),
        grammars=no_grammars(num_rows),
    )


def no_grammars(num_rows: int) -> Grammars:
    """Those of rows that have none."""
    return Grammars(num_rows, VOCAB_SIZE, Path(), ())


def admission(
    row: int, *, known: Sequence[int] = (), prompt_len: int = 0, length: int = 0, **sampling: Any
) -> RowAdmission:
    """A greedy row unless the sampling says otherwise."""
    settings: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
    return RowAdmission(
        row=row,
        sampling=SamplingParams(**(settings | sampling)),
        length=length,
        prompt_len=prompt_len or len(known),
        known_tokens=int32(list(known)),
    )


def make_plan(
    decodes: Sequence[int] = (),
    chunks: Sequence[Chunk] = (),
    siblings: Sequence[tuple[int, int]] = (),
    **columns: Any,
) -> StepPlan:
    """A plan that decodes rows, prefills chunks, and samples for (sibling, parent) pairs."""
    return StepPlan(
        step=0,
        decode_rows=int32(list(decodes)),
        prefill_rows=int32([chunk.row for chunk in chunks]),
        prefill_starts=int32([chunk.start for chunk in chunks]),
        prefill_counts=int32([len(chunk.tokens) for chunk in chunks]),
        prefill_samples=array("b", [chunk.samples for chunk in chunks]),
        prefill_tokens=int32([token for chunk in chunks for token in chunk.tokens]),
        sibling_rows=int32([sibling for sibling, _ in siblings]),
        sibling_parents=int32([parent for _, parent in siblings]),
        **columns,
    )
