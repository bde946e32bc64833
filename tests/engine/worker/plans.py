"""A hand-driven scheduler: a test says which rows move, it fills in blocks and keeps the tokens."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.integers import div_ceil
from engine.types import RowAdmission, SamplingParams, StepPlan, StepResult, int32
from engine.worker.worker import Worker

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(eq=False)
class Row:
    """One sequence as the driver sees it."""

    row: int
    tokens: list[int]
    prompt_len: int
    length: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_len :]


class Driver:
    """Makes plans for a worker, with block ids in random order."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.free_blocks = list(range(worker.capacity.num_blocks))
        random.Random(0).shuffle(self.free_blocks)
        self._free_rows = list(range(worker.capacity.num_rows))
        self._block_size = worker.capacity.block_size
        self._num_groups = len(worker.capacity.windows)
        self._next_step = 0
        self._releases: list[int] = []
        self._admissions: list[RowAdmission] = []

    def admit(self, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> Row:
        """Give a prompt a row; nothing is computed yet."""
        row = Row(self._free_rows.pop(0), list(prompt), len(prompt))
        self._admissions.append(RowAdmission(row=row.row, sampling=sampling))
        return row

    def release(self, row: Row) -> None:
        """Give back a row and its blocks, to be used again at once."""
        self._releases.append(row.row)
        self._free_rows.insert(0, row.row)
        self.free_blocks.extend(row.blocks)

    def step(
        self, decodes: Sequence[Row] = (), prefills: Sequence[tuple[Row, int]] = ()
    ) -> StepResult:
        """Run one step: `decodes` grow by a token each, prefills by a count of known ones."""
        plan = self.plan(decodes, prefills)
        result = self.worker.execute(plan)
        ended = [
            row for (row, _), samples in zip(prefills, plan.prefill_samples, strict=True) if samples
        ]
        for row, token in zip([*decodes, *ended], result.tokens, strict=True):
            row.tokens.append(token)
        return result

    def plan(self, decodes: Sequence[Row], prefills: Sequence[tuple[Row, int]]) -> StepPlan:
        """The plan of one step; rows move on as if it had been run."""
        appends = [append for row in decodes for append in self._grow(row, 1)]
        chunks = [(row, row.length, count) for row, count in prefills]
        appends += [append for row, count in prefills for append in self._grow(row, count)]
        plan = StepPlan(
            step=self._next_step,
            releases=int32(self._releases),
            admissions=self._admissions,
            append_rows=int32([row for row, _, _ in appends]),
            append_indices=int32([index for _, index, _ in appends]),
            append_blocks=int32([block for _, _, block in appends]),
            decode_rows=int32([row.row for row in decodes]),
            prefill_rows=int32([row.row for row, _, _ in chunks]),
            prefill_starts=int32([start for _, start, _ in chunks]),
            prefill_counts=int32([count for _, _, count in chunks]),
            prefill_samples=array("b", [row.length == len(row.tokens) for row, _, _ in chunks]),
            prefill_tokens=int32(
                [t for row, start, count in chunks for t in row.tokens[start : start + count]]
            ),
        )
        self._next_step += 1
        self._releases, self._admissions = [], []
        return plan

    def prefill(self, row: Row, chunk: int) -> list[StepResult]:
        """Feed all known tokens of a row in chunks."""
        num_known = len(row.tokens)
        counts = [min(chunk, num_known - start) for start in range(0, num_known, chunk)]
        return [self.step(prefills=[(row, count)]) for count in counts]

    def generate(self, row: Row, num_tokens: int) -> list[int]:
        """Decode a prefilled row by itself until it has generated so many tokens."""
        while len(row.output) < num_tokens:
            self.step([row])
        return row.output

    def run(self, rows: Sequence[Row], num_tokens: int, chunk: int = 7) -> None:
        """Bring rows to so many generated tokens, two prefilling beside all that decode."""
        while any(len(row.output) < num_tokens for row in rows):
            decodes = [row for row in rows if 0 < len(row.output) < num_tokens]
            prefilling = [row for row in rows if not row.output][:2]
            self.step(decodes, [(r, min(chunk, r.prompt_len - r.length)) for r in prefilling])

    def _grow(self, row: Row, count: int) -> list[tuple[int, int, int]]:
        row.length += count
        appends = []
        num_blocks = div_ceil(row.length, self._block_size) * self._num_groups
        while len(row.blocks) < num_blocks:
            appends.append((row.row, len(row.blocks), self.free_blocks.pop()))
            row.blocks.append(appends[-1][2])
        return appends
