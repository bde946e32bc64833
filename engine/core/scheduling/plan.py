"""Assembles one StepPlan while the planner decides, and checks it."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.core.memory.block_manager import BlockTableUpdate
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.sequence import Sequence
from engine.core.sequence_group import Member, SequenceGroup
from engine.types import RowAdmission, StepPlan, int32, int64


class _Pairs:
    """Two columns that belong together."""

    def __init__(self) -> None:
        self.first = int32()
        self.second = int32()

    def add(self, first: int, second: int) -> None:
        self.first.append(first)
        self.second.append(second)


@dataclass(eq=False, slots=True, kw_only=True)
class PlannedStep:
    """What the planner has decided for one step.

    Attributes:
        plan: None when the workers have nothing to do.
        sampled: the sequences that get a token, in the order of the result.
        prefilled: the group of each prefill chunk.
        num_recomputed, num_swapped_out: groups that were preempted, by kind.
        num_cached_tokens: tokens of groups that enter the batch, found in the prefix cache.
        num_restored_tokens: those of them that come from the swap space.
        num_prompt_tokens, num_prompt_cached, num_recomputed_tokens: see `WorkCounts`, of this step.
        prefill_ends: groups whose prefill this step ends.
        dropped: ids of requests whose results are worthless, for they come from spoiled blocks.
    """

    plan: StepPlan | None
    sampled: list[Member]
    prefilled: list[SequenceGroup]
    num_recomputed: int
    num_swapped_out: int
    num_cached_tokens: int
    num_restored_tokens: int = 0
    num_prompt_tokens: int = 0
    num_prompt_cached: int = 0
    num_recomputed_tokens: int = 0
    prefill_ends: list[SequenceGroup] = field(default_factory=list)
    dropped: set[int] = field(default_factory=set)


class PlanBuilder:
    """The decisions of one step so far; holds the token budget.

    Attributes:
        max_chunk: tokens of one prompt while another one could use the rest of the budget.
        num_left: tokens of the budget that are not planned yet.
    """

    def __init__(self, step: int, max_num_tokens: int, max_chunk: int) -> None:
        self.step = step
        self.max_chunk = max_chunk
        self.num_left = max_num_tokens
        self._max_num_tokens = max_num_tokens
        self._decodes: list[Member] = []
        self._ended_prefills: list[Member] = []
        self._siblings: list[Member] = []
        self._prefilled: list[SequenceGroup] = []
        self._num_recomputed = 0
        self._num_swapped_out = 0
        self._num_cached_tokens = 0
        self._num_restored_tokens = 0
        self._num_prompt_tokens = 0
        self._num_prompt_cached = 0
        self._num_recomputed_tokens = 0
        self._prefill_ends: list[SequenceGroup] = []
        self._admissions: list[RowAdmission] = []
        # by (row, index) and by row: a device writes all at once, so nothing may be written twice
        self._appends: dict[tuple[int, int], int] = {}
        self._last_tokens: dict[int, int] = {}
        self._forks = _Pairs()
        self._swap_outs = _Pairs()
        self._swap_out_keys = int64()
        self._swap_ins = _Pairs()
        self._swap_in_keys = int64()
        self._copies = _Pairs()
        self._prefills = _Pairs()
        self._prefill_counts = int32()
        self._prefill_samples = array("b")
        self._prefill_tokens = int32()
        self._sibling_rows = _Pairs()

    def admit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Give a sequence's row its parameters."""
        self._admit(group, sequence, row=sequence.row, choice=sequence.choice)

    def admit_reserved(self, group: SequenceGroup, row: int, choice: int) -> None:
        """Give its parameters to the row of a sibling that is not forked yet."""
        self._admit(group, None, row=row, choice=choice)

    def fork(self, parent_row: int, child_row: int) -> None:
        """Let a row take over the state that another has before this step."""
        self._forks.add(parent_row, child_row)

    def update_table(self, sequence: Sequence, update: BlockTableUpdate) -> None:
        """Pass on what changed in a sequence's block table; what changed before is overwritten."""
        for index, block in update.new_blocks:
            self._appends[sequence.row, index] = block
        self.copy(update.copies)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (source, destination) blocks before the step's forward pass."""
        for source, destination in pairs:
            self._copies.add(source, destination)

    def set_last_token(self, sequence: Sequence) -> None:
        """Write a row's last token, where the row has not sampled it itself."""
        self._last_tokens[sequence.row] = sequence.last_known

    def swap_out(self, pairs: list[tuple[int, int]], keys: bytes) -> None:
        """Copy the (GPU block, swap block) pairs of a preempted group; keys: what they hold."""
        self._num_swapped_out += 1
        self.save(pairs, keys)

    def save(self, pairs: list[tuple[int, int]], keys: bytes) -> None:
        """Copy (GPU block, swap block) pairs; keys: what they hold."""
        for block, swap_block in pairs:
            self._swap_outs.add(block, swap_block)
        self._swap_out_keys.frombytes(keys)

    def swap_in(self, pairs: Iterable[tuple[int, int]], keys: bytes) -> None:
        """Copy the (swap block, GPU block) pairs of a group; keys: what they should hold."""
        for swap_block, block in pairs:
            self._swap_ins.add(swap_block, block)
        self._swap_in_keys.frombytes(keys)

    def count_recomputed(self) -> None:
        """Count a preempted group that is prefilled again; the workers need not know."""
        self._num_recomputed += 1

    def count_cached(self, num_tokens: int, num_restored: int) -> None:
        """Count tokens that a group has found in the prefix cache, some in the swap space."""
        self._num_cached_tokens += num_tokens
        self._num_restored_tokens += num_restored

    def count_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Count the prompt of a request that enters for the first time."""
        self._num_prompt_tokens += num_tokens
        self._num_prompt_cached += num_cached

    def count_again(self, num_tokens: int) -> None:
        """Count tokens that have been computed before and are now once more."""
        self._num_recomputed_tokens += num_tokens

    def end_prefill(self, group: SequenceGroup) -> None:
        """Note that all known tokens of a group are planned with this step."""
        self._prefill_ends.append(group)

    def decode(self, sequences: list[Member]) -> None:
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
        self._prefilled.append(group)
        self._prefill_counts.append(count)
        self._prefill_samples.append(samples)
        self._prefill_tokens.extend(sequence.known_tokens(start, count))
        self.num_left -= count
        if samples:
            self._ended_prefills.append((group, sequence))
        return samples

    def sibling(self, group: SequenceGroup, sequence: Sequence, parent: Sequence) -> None:
        """Sample for a sequence just forked from the logits of its parent's ended prefill."""
        self._sibling_rows.add(sequence.row, parent.row)
        self._siblings.append((group, sequence))

    def build(self, rows: RowAllocator) -> PlannedStep:
        """Finish the step. Rows that were freed go with its plan, if there is one."""
        return PlannedStep(
            plan=None if self.is_empty else self._make_plan(rows.take_freed()),
            # in the order of `StepPlan.sampled_rows`
            sampled=self._decodes + self._ended_prefills + self._siblings,
            prefilled=self._prefilled,
            num_recomputed=self._num_recomputed,
            num_swapped_out=self._num_swapped_out,
            num_cached_tokens=self._num_cached_tokens,
            num_restored_tokens=self._num_restored_tokens,
            num_prompt_tokens=self._num_prompt_tokens,
            num_prompt_cached=self._num_prompt_cached,
            num_recomputed_tokens=self._num_recomputed_tokens,
            prefill_ends=self._prefill_ends,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for the workers to do."""
        has_tokens = self._decodes or self._prefill_counts
        moves_blocks = self._swap_outs.first or self._copies.first
        # what was decided about rows and blocks must reach the workers even if nothing is computed
        return not (has_tokens or self._admissions or self._forks.first or moves_blocks)

    def _make_plan(self, freed_rows: list[int]) -> StepPlan:
        plan = StepPlan(
            step=self.step,
            releases=int32(freed_rows),
            admissions=tuple(self._admissions),
            fork_parents=self._forks.first,
            fork_children=self._forks.second,
            append_rows=int32([row for row, _ in self._appends]),
            append_indices=int32([index for _, index in self._appends]),
            append_blocks=int32(list(self._appends.values())),
            token_rows=int32(list(self._last_tokens)),
            token_values=int32(list(self._last_tokens.values())),
            swap_out_sources=self._swap_outs.first,
            swap_out_destinations=self._swap_outs.second,
            swap_out_keys=self._swap_out_keys,
            swap_in_sources=self._swap_ins.first,
            swap_in_destinations=self._swap_ins.second,
            swap_in_keys=self._swap_in_keys,
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
    swap_blocks = set(plan.swap_out_destinations)
    assert len(swap_blocks) == len(plan.swap_out_destinations)
    assert set(plan.fork_children).isdisjoint(plan.fork_parents)
