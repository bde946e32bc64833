"""Assembles one StepPlan while the scheduler decides, and checks it."""

from array import array
from collections.abc import Iterable

from engine.core.memory import Growth
from engine.core.sequence import Sequence, SequenceGroup
from engine.types import RowAdmission, StepPlan, int32


class _Pairs:
    """Two columns that belong together."""

    def __init__(self) -> None:
        self.first = int32()
        self.second = int32()

    def add(self, first: int, second: int) -> None:
        self.first.append(first)
        self.second.append(second)


class PlanBuilder:
    """The decisions of one step; holds the token budget.

    Attributes:
        max_chunk: tokens of one prompt while another one could use the rest of the budget.
        prefilled: the group of each prefill chunk.
    """

    def __init__(self, step: int, max_num_tokens: int, max_chunk: int) -> None:
        self.step = step
        self.max_chunk = max_chunk
        self.num_left = max_num_tokens
        self._max_num_tokens = max_num_tokens
        self._decodes: list[tuple[SequenceGroup, Sequence]] = []
        self._ended_prefills: list[tuple[SequenceGroup, Sequence]] = []
        self._siblings: list[tuple[SequenceGroup, Sequence]] = []
        self.prefilled: list[SequenceGroup] = []
        self._admissions: list[RowAdmission] = []
        # by (row, index) and by row: a device writes all at once, so nothing may be written twice
        self._appends: dict[tuple[int, int], int] = {}
        self._last_tokens: dict[int, int] = {}
        self._forks = _Pairs()
        self._swap_outs = _Pairs()
        self._swap_ins = _Pairs()
        self._copies = _Pairs()
        self._prefills = _Pairs()
        self._prefill_counts = int32()
        self._prefill_samples = array("b")
        self._prefill_tokens = int32()
        self._sibling_rows = _Pairs()

    @property
    def sampled(self) -> list[tuple[SequenceGroup, Sequence]]:
        """Who gets a token, in the order of the result."""
        return self._decodes + self._ended_prefills + self._siblings

    @property
    def is_empty(self) -> bool:
        """Whether the workers have nothing to do."""
        has_tokens = self._decodes or self._prefill_counts
        moves_blocks = self._swap_outs.first or self._copies.first
        # what was decided about rows and blocks must reach the workers even if nothing is computed
        return not (has_tokens or self._admissions or self._forks.first or moves_blocks)

    def admit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Give a sequence's row its parameters."""
        self._admit(group, sequence, row=sequence.row, choice=sequence.choice)

    def admit_spare(self, group: SequenceGroup, row: int, choice: int) -> None:
        """Give its parameters to the row of a sibling that is not born yet."""
        self._admit(group, None, row=row, choice=choice)

    def fork(self, parent_row: int, child_row: int) -> None:
        """Let a row take over the state that another has before this step."""
        self._forks.add(parent_row, child_row)

    def grow(self, sequence: Sequence, growth: Growth) -> None:
        """Pass on what changed in a sequence's block table; what changed before is overwritten."""
        for index, block in growth.entries:
            self._appends[sequence.row, index] = block
        self.copy(growth.copies)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (source, destination) blocks before the step's forward pass."""
        for source, destination in pairs:
            self._copies.add(source, destination)

    def set_last_token(self, sequence: Sequence) -> None:
        """Tell a row its last token, where it did not sample it itself."""
        self._last_tokens[sequence.row] = sequence.last_known

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy (block, swap slot) pairs."""
        for block, slot in pairs:
            self._swap_outs.add(block, slot)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy (swap slot, block) pairs."""
        for slot, block in pairs:
            self._swap_ins.add(slot, block)

    def decode(self, sequences: list[tuple[SequenceGroup, Sequence]]) -> None:
        """Feed the last token of each one's row and sample the next."""
        self._decodes += sequences
        self.num_left -= len(sequences)

    def prefill(self, group: SequenceGroup, sequence: Sequence, count: int) -> bool:
        """Feed the next `count` known tokens; the chunk that ends them samples.

        Returns:
            Whether a token is sampled.
        """
        start = sequence.num_scheduled
        samples = start + count == sequence.prefill_end
        self._prefills.add(sequence.row, start)
        self.prefilled.append(group)
        self._prefill_counts.append(count)
        self._prefill_samples.append(samples)
        self._prefill_tokens.extend(sequence.known_tokens(start, count))
        self.num_left -= count
        if samples:
            self._ended_prefills.append((group, sequence))
        return samples

    def sibling(self, group: SequenceGroup, sequence: Sequence, parent: Sequence) -> None:
        """Sample for a sequence just born from the logits of its parent's ended prefill."""
        self._sibling_rows.add(sequence.row, parent.row)
        self._siblings.append((group, sequence))

    def build(self, releases: list[int]) -> StepPlan:
        """Finish the plan."""
        plan = StepPlan(
            step=self.step,
            releases=int32(releases),
            admissions=tuple(self._admissions),
            fork_parents=self._forks.first,
            fork_children=self._forks.second,
            append_rows=int32([row for row, _ in self._appends]),
            append_indices=int32([index for _, index in self._appends]),
            append_blocks=int32(list(self._appends.values())),
            token_rows=int32(list(self._last_tokens)),
            token_values=int32(list(self._last_tokens.values())),
            swap_out_blocks=self._swap_outs.first,
            swap_out_slots=self._swap_outs.second,
            swap_in_slots=self._swap_ins.first,
            swap_in_blocks=self._swap_ins.second,
            copy_sources=self._copies.first,
            copy_destinations=self._copies.second,
            decode_rows=int32([sequence.row for _, sequence in self._decodes]),
            prefill_rows=self._prefills.first,
            prefill_starts=self._prefills.second,
            prefill_counts=self._prefill_counts,
            prefill_samples=self._prefill_samples,
            prefill_tokens=self._prefill_tokens,
            sibling_rows=self._sibling_rows.first,
            sibling_parents=self._sibling_rows.second,
        )
        _check(plan, self._max_num_tokens)
        return plan

    def _admit(
        self, group: SequenceGroup, sequence: Sequence | None, *, row: int, choice: int
    ) -> None:
        prompt, sampling = group.request.prompt, group.row_sampling
        known_tokens = int32()
        if sampling.needs_known_tokens:
            known_tokens = sequence.known_tokens(0, sequence.num_known) if sequence else prompt
        admission = RowAdmission(
            row=row,
            sampling=sampling,
            choice=choice,
            length=sequence.num_scheduled if sequence else 0,
            prompt_len=len(prompt),
            known_tokens=known_tokens,
        )
        self._admissions.append(admission)


def _check(plan: StepPlan, max_num_tokens: int) -> None:
    assert plan.num_tokens <= max_num_tokens
    destinations = set(plan.copy_destinations)
    assert len(destinations) == len(plan.copy_destinations)
    assert destinations.isdisjoint(plan.copy_sources)
    assert set(plan.fork_children).isdisjoint(plan.fork_parents)
