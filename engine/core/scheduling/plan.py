"""One step while the planner decides it, and what of it is kept until its result comes."""

from collections.abc import Iterable

from engine.core.memory.block_manager import BlockTableUpdate
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.sequence import Sequence
from engine.core.sequence_group import Member, SequenceGroup
from engine.types import RowAdmission, StepPlan, int32


class PlannedStep:
    """The decisions of one step: for the workers in its plan, for the scheduler beside it.

    The planner adds them one by one, then calls `finish`. They go straight into the columns of the
    plan, but for those in which a later decision may replace an earlier one.

    Attributes:
        plan: for the workers.
        max_chunk: tokens of one prompt while another one could use the rest of the budget.
        num_left: tokens of the budget that are not planned yet.
        sampled: the sequences that get a token, in the order of the result; once it is finished.
        prefilled: the group of each prefill chunk.
        num_recomputed, num_swapped_out: groups that were preempted, by kind.
        num_cached_tokens: tokens of groups that enter the batch, found in the prefix cache.
        num_restored_tokens: those of them that come from the swap space.
        num_prompt_tokens, num_prompt_cached, num_recomputed_tokens: see `WorkCounts`, of this step.
        prefill_ends: groups whose prefill this step ends.
        dropped: ids of requests whose results are worthless, for they come from spoiled blocks.
    """

    def __init__(
        self, step: int, max_num_tokens: int, max_chunk: int, *, is_filled: bool = True
    ) -> None:
        """Begin a step that may feed `max_num_tokens`.

        Args:
            is_filled: whether more than `max_chunk` prompt tokens may keep the first token of a
                prompt waiting that ends in the step.
        """
        self.plan = StepPlan(step=step)
        self.max_chunk = max_chunk
        self.num_left = max_num_tokens
        self.sampled: list[Member] = []
        self.prefilled: list[SequenceGroup] = []
        self.num_recomputed = 0
        self.num_swapped_out = 0
        self.num_cached_tokens = 0
        self.num_restored_tokens = 0
        self.num_prompt_tokens = 0
        self.num_prompt_cached = 0
        self.num_recomputed_tokens = 0
        self.prefill_ends: list[SequenceGroup] = []
        self.dropped: set[int] = set()
        self._max_num_tokens = max_num_tokens
        self._is_filled = is_filled
        self._ended_prefills: list[Member] = []
        self._siblings: list[Member] = []
        # by (row, index) and by row: a device writes all at once, so nothing may be written twice
        self._appends: dict[tuple[int, int], int] = {}
        self._last_tokens: dict[int, int] = {}

    @property
    def step(self) -> int:
        """Number of the plan."""
        return self.plan.step

    def admit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Give a sequence's row its parameters."""
        self._admit(group, sequence, row=sequence.row, choice=sequence.choice)

    def admit_reserved(self, group: SequenceGroup, row: int, choice: int) -> None:
        """Give its parameters to the row of a sibling that is not forked yet."""
        self._admit(group, None, row=row, choice=choice)

    def fork(self, parent_row: int, child_row: int) -> None:
        """Let a row take over the state that another has before this step."""
        self.plan.fork_parents.append(parent_row)
        self.plan.fork_children.append(child_row)

    def update_table(self, sequence: Sequence, update: BlockTableUpdate) -> None:
        """Pass on what changed in a sequence's block table; what changed before is overwritten."""
        for index, block in update.new_blocks:
            self._appends[sequence.row, index] = block
        self.copy(update.copies)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (source, destination) blocks before the step's forward pass."""
        for source, destination in pairs:
            self.plan.copy_sources.append(source)
            self.plan.copy_destinations.append(destination)

    def set_last_token(self, sequence: Sequence) -> None:
        """Write a row's last token, where the row has not sampled it itself."""
        self._last_tokens[sequence.row] = sequence.last_known

    def swap_out(self, pairs: list[tuple[int, int]], keys: bytes) -> None:
        """Copy the (GPU block, swap block) pairs of a preempted group; keys: what they hold."""
        self.num_swapped_out += 1
        self.save(pairs, keys)

    def save(self, pairs: list[tuple[int, int]], keys: bytes) -> None:
        """Copy (GPU block, swap block) pairs; keys: what they hold."""
        for block, swap_block in pairs:
            self.plan.swap_out_sources.append(block)
            self.plan.swap_out_destinations.append(swap_block)
        self.plan.swap_out_keys.frombytes(keys)

    def swap_in(self, pairs: Iterable[tuple[int, int]], keys: bytes) -> None:
        """Copy the (swap block, GPU block) pairs of a group; keys: what they should hold."""
        for swap_block, block in pairs:
            self.plan.swap_in_sources.append(swap_block)
            self.plan.swap_in_destinations.append(block)
        self.plan.swap_in_keys.frombytes(keys)

    def count_recomputed(self) -> None:
        """Count a preempted group that is prefilled again; the workers need not know."""
        self.num_recomputed += 1

    def count_cached(self, num_tokens: int, num_restored: int) -> None:
        """Count tokens that a group has found in the prefix cache, some in the swap space."""
        self.num_cached_tokens += num_tokens
        self.num_restored_tokens += num_restored

    def count_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Count the prompt of a request that enters for the first time."""
        self.num_prompt_tokens += num_tokens
        self.num_prompt_cached += num_cached

    def count_again(self, num_tokens: int) -> None:
        """Count tokens that have been computed before and are now once more."""
        self.num_recomputed_tokens += num_tokens

    def end_prefill(self, group: SequenceGroup) -> None:
        """Note that all known tokens of a group are planned with this step."""
        self.prefill_ends.append(group)
        if not self._is_filled:
            num_prompt_tokens = len(self.plan.prefill_tokens)
            self.num_left = min(self.num_left, max(0, self.max_chunk - num_prompt_tokens))

    def decode(self, sequences: list[Member]) -> None:
        """Feed the last token of each one's row and sample the next."""
        self.sampled += sequences
        self.plan.decode_rows.fromlist([sequence.row for _, sequence in sequences])
        self.num_left -= len(sequences)

    def prefill(self, group: SequenceGroup, sequence: Sequence, count: int) -> bool:
        """Feed the next `count` known tokens; the chunk that ends them samples.

        Returns:
            Whether a token is sampled.
        """
        start = sequence.num_scheduled
        samples = start + count == sequence.prefill_end
        self.prefilled.append(group)
        plan = self.plan
        plan.prefill_rows.append(sequence.row)
        plan.prefill_starts.append(start)
        plan.prefill_counts.append(count)
        plan.prefill_samples.append(samples)
        plan.prefill_tokens.extend(sequence.known_tokens(start, count))
        self.num_left -= count
        if samples:
            self._ended_prefills.append((group, sequence))
        return samples

    def sibling(self, group: SequenceGroup, sequence: Sequence, parent: Sequence) -> None:
        """Sample for a sequence just forked from the logits of its parent's ended prefill."""
        self.plan.sibling_rows.append(sequence.row)
        self.plan.sibling_parents.append(parent.row)
        self._siblings.append((group, sequence))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for the workers to do."""
        plan = self.plan
        moves_blocks = plan.swap_out_sources or plan.copy_sources
        # what was decided about rows and blocks must reach the workers even if nothing is computed
        return not (plan.num_tokens or plan.admissions or plan.fork_parents or moves_blocks)

    def finish(self, rows: RowAllocator) -> None:
        """Complete the plan, if it is not empty. Rows that were freed go with it."""
        # in the order of `StepPlan.sampled_rows`
        self.sampled += self._ended_prefills + self._siblings
        if self.is_empty:
            return
        plan = self.plan
        plan.releases.extend(rows.take_freed())
        plan.append_rows.extend([row for row, _ in self._appends])
        plan.append_indices.extend([index for _, index in self._appends])
        plan.append_blocks.extend(self._appends.values())
        plan.token_rows.extend(self._last_tokens)
        plan.token_values.extend(self._last_tokens.values())
        _check(plan, self._max_num_tokens)

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
        self.plan.admissions.append(admission)


def _check(plan: StepPlan, max_num_tokens: int) -> None:
    assert plan.num_tokens <= max_num_tokens
    destinations = set(plan.copy_destinations)
    assert len(destinations) == len(plan.copy_destinations)
    assert destinations.isdisjoint(plan.copy_sources)
    swap_blocks = set(plan.swap_out_destinations)
    assert len(swap_blocks) == len(plan.swap_out_destinations)
    assert set(plan.fork_children).isdisjoint(plan.fork_parents)
