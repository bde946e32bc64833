"""An executor that computes nothing and reports how long it would have taken.

The real scheduler and memory run under a virtual clock: the loop around the engine adds
`StepResult.elapsed_s` to its time. Standard library only, and the same in every run.
"""

from array import array
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from engine.types import Capacity, SamplingParams, StepPlan, StepResult, float32, int32
from load_tests.simulator.step_time import StepTime, StepWork

# what prompts of beam searches must consist of, and what is sampled: so a chunk's last token shows
# whether it ends a prompt or what had been generated before a preemption
PROMPT_TOKEN = 0
OUTPUT_TOKEN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamAncestry:
    """Whose children the beams of the next step are: a Moran process.

    In each step every beam is replaced, with a fixed probability, by a copy of another one. 0.10
    for Alpaca and 0.01 for ShareGPT save as much memory as the paper's beams do (figure 15).
    """

    replacement: float
    seed: int = 0

    def num_children(self, request_seed: int, length: int, width: int) -> tuple[int, ...]:
        """Children of each of `width` beams of a request when they are `length` tokens long."""
        return _moran_step(f"{self.seed} {request_seed} {length}", self.replacement, width)


# every beam of a request asks for the children of all
@lru_cache(maxsize=1024)
def _moran_step(seed: str, replacement: float, width: int) -> tuple[int, ...]:
    random = Random(seed)
    children = [1] * width
    for beam in range(width):
        if width > 1 and random.random() < replacement:
            parent = (beam + 1 + int(random.random() * (width - 1))) % width
            children[beam] -= 1
            children[parent] += 1
    return tuple(children)


class SimulatedExecutor:
    """Keeps the length of every row, and charges each plan with the time of its work.

    Sampled tokens are all `OUTPUT_TOKEN`, so requests must ignore end tokens and end by length.
    """

    def __init__(
        self,
        capacity: Capacity,
        step_time: StepTime,
        *,
        ancestry: BeamAncestry | None = None,
        run_ahead: int = 1,
    ) -> None:
        """Args: ancestry: of beams; by default each has one child in every step."""
        self.capacity = capacity
        self.run_ahead = run_ahead
        self._step_time = step_time
        self._ancestry = ancestry or BeamAncestry(replacement=0.0)
        self._lengths = array("i", bytes(4 * capacity.num_rows))
        self._sampling: list[SamplingParams | None] = [None] * capacity.num_rows
        self._choices = array("i", bytes(4 * capacity.num_rows))
        self._num_beam_rows = 0
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`."""
        self._apply_rows(plan)
        work = self._advance(plan)
        rows = plan.sampled_rows
        counts = self._num_alternatives(plan) if self._num_beam_rows else []
        self._results.append(
            StepResult(
                step=plan.step,
                rows=rows,
                tokens=int32([OUTPUT_TOKEN]) * len(rows),
                top_counts=int32(counts),
                top_tokens=int32([OUTPUT_TOKEN]) * sum(counts),
                top_logprobs=float32([0.0]) * sum(counts),
                elapsed_s=self._step_time.seconds(work),
            )
        )

    def collect(self) -> StepResult:
        """See `Executor.collect`."""
        return self._results.popleft()

    def close(self) -> None:
        """See `Executor.close`."""
        self._results.clear()

    def context_lens(self, plan: StepPlan) -> list[int]:
        """Positions of every sequence that the plan submitted last computes or forks."""
        rows = plan.decode_rows + plan.prefill_rows + plan.sibling_rows
        return [self._lengths[row] for row in rows]

    def _apply_rows(self, plan: StepPlan) -> None:
        for row in plan.releases:
            self._num_beam_rows -= self._is_beam(row)
            self._sampling[row] = None
        for admission in plan.admissions:
            self._sampling[admission.row] = admission.sampling
            self._choices[admission.row] = admission.choice
            self._lengths[admission.row] = admission.length
            self._num_beam_rows += self._is_beam(admission.row)
        for parent, child in zip(plan.fork_parents, plan.fork_children, strict=True):
            self._lengths[child] = self._lengths[parent]

    def _advance(self, plan: StepPlan) -> StepWork:
        """Let the rows grow as planned."""
        lengths = self._lengths
        for row in plan.decode_rows:
            lengths[row] += 1
        contexts = [lengths[row] for row in plan.decode_rows]
        for row, start, count in zip(
            plan.prefill_rows, plan.prefill_starts, plan.prefill_counts, strict=True
        ):
            lengths[row] = start + count
            contexts.append(lengths[row])
        for row, parent in zip(plan.sibling_rows, plan.sibling_parents, strict=True):
            lengths[row] = lengths[parent]
        return StepWork(
            new_tokens=(1,) * len(plan.decode_rows) + tuple(plan.prefill_counts),
            contexts=tuple(contexts),
            num_decodes=len(plan.decode_rows),
            num_copied_blocks=len(plan.copy_sources),
            num_swapped_blocks=len(plan.swap_out_sources) + len(plan.swap_in_destinations),
        )

    def _num_alternatives(self, plan: StepPlan) -> list[int]:
        """Equally likely tokens after each sampled row: as many as its beam has children."""
        first_rows = self._rows_that_end_a_prompt(plan)
        counts = []
        for row in plan.sampled_rows:
            sampling = self._sampling[row]
            assert sampling is not None
            if not sampling.beam_width:
                counts.append(0)
            elif row in first_rows:
                counts.append(sampling.beam_width)
            else:
                children = self._ancestry.num_children(
                    sampling.seed, self._lengths[row], sampling.beam_width
                )
                counts.append(children[self._choices[row]])
        return counts

    def _rows_that_end_a_prompt(self, plan: StepPlan) -> set[int]:
        rows, end = set(), 0
        for row, count in zip(plan.prefill_rows, plan.prefill_counts, strict=True):
            end += count
            if plan.prefill_tokens[end - 1] == PROMPT_TOKEN:
                rows.add(row)
        return rows

    def _is_beam(self, row: int) -> bool:
        sampling = self._sampling[row]
        return sampling is not None and sampling.beam_width > 0
