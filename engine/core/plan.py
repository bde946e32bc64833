"""Assembles one StepPlan while the scheduler decides, and checks it."""

from array import array

from engine.core.sequence import Sequence, SequenceGroup
from engine.types import RowAdmission, SamplingParams, StepPlan, int32


class PlanBuilder:
    """The decisions of one step; holds the token budget."""

    def __init__(self, step: int, max_num_tokens: int) -> None:
        self.step = step
        self.num_left = max_num_tokens
        self._decodes: list[tuple[SequenceGroup, Sequence]] = []
        self._max_num_tokens = max_num_tokens
        self._ended_prefills: list[tuple[SequenceGroup, Sequence]] = []
        self._admissions: list[RowAdmission] = []
        self._append_rows: list[int] = []
        self._append_indices: list[int] = []
        self._append_blocks: list[int] = []
        self._decode_rows: list[int] = []
        self._prefill_rows: list[int] = []
        self._prefill_starts: list[int] = []
        self._prefill_counts: list[int] = []
        self._prefill_samples: list[int] = []
        self._prefill_tokens = int32()

    @property
    def sampled(self) -> list[tuple[SequenceGroup, Sequence]]:
        """Who gets a token, in the order of the result."""
        return self._decodes + self._ended_prefills

    def admit(self, sequence: Sequence, sampling: SamplingParams) -> None:
        """Give the sequence's row its parameters."""
        self._admissions.append(RowAdmission(row=sequence.row, sampling=sampling))

    def append_blocks(self, sequence: Sequence, entries: list[tuple[int, int]]) -> None:
        """Extend the row's block table by (index, block) entries."""
        for index, block in entries:
            self._append_rows.append(sequence.row)
            self._append_indices.append(index)
            self._append_blocks.append(block)

    def decode(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Feed the row's last token and sample the next."""
        self._decode_rows.append(sequence.row)
        self._decodes.append((group, sequence))
        self.num_left -= 1

    def prefill(self, group: SequenceGroup, sequence: Sequence, count: int) -> bool:
        """Feed the next `count` known tokens; the chunk that ends them samples.

        Returns:
            Whether a token is sampled.
        """
        start = sequence.num_scheduled
        samples = start + count == sequence.prefill_end
        self._prefill_rows.append(sequence.row)
        self._prefill_starts.append(start)
        self._prefill_counts.append(count)
        self._prefill_samples.append(samples)
        self._prefill_tokens.extend(sequence.known_tokens(start, count))
        self.num_left -= count
        if samples:
            self._ended_prefills.append((group, sequence))
        return samples

    def build(self, releases: list[int]) -> StepPlan | None:
        """Finish the plan; None when there is nothing to compute."""
        if not self._decode_rows and not self._prefill_rows:
            return None
        plan = StepPlan(
            step=self.step,
            releases=int32(releases),
            admissions=tuple(self._admissions),
            append_rows=int32(self._append_rows),
            append_indices=int32(self._append_indices),
            append_blocks=int32(self._append_blocks),
            decode_rows=int32(self._decode_rows),
            prefill_rows=int32(self._prefill_rows),
            prefill_starts=int32(self._prefill_starts),
            prefill_counts=int32(self._prefill_counts),
            prefill_samples=array("b", self._prefill_samples),
            prefill_tokens=self._prefill_tokens,
        )
        _check(plan, self._max_num_tokens)
        return plan


def _check(plan: StepPlan, max_num_tokens: int) -> None:
    assert plan.num_tokens <= max_num_tokens
    destinations = set(plan.copy_destinations)
    assert len(destinations) == len(plan.copy_destinations)
    assert destinations.isdisjoint(plan.copy_sources)
