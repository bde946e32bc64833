"""Decides what one step computes, and which groups are preempted for it (paper, section 4.5).

Each step mixes one token of every running sequence with chunks of prompts, under a token budget:

    1. forks of beams since the last plan: their rows and block tables follow
    2. decodes: one token of every running sequence; groups are preempted if blocks run out
    3. prefills: further chunks of prompts that are being prefilled
    4. groups that enter: swapped ones come back, waiting ones get blocks and start their prefill

    5. copies of blocks that the pool may lose soon to the swap space

When blocks run out the latest group is preempted as a whole: its blocks are swapped out, or they
are dropped and its tokens prefilled again later.
"""

from collections.abc import Iterable
from functools import partial
from itertools import chain

from engine.core.decoding.decoding import BeamFork
from engine.core.memory.block_manager import NO_UPDATE, Allocation, BlockManager, BlockTableUpdate
from engine.core.scheduling.admission_gate import AdmissionGate
from engine.core.scheduling.deferred_release import DeferredRelease
from engine.core.scheduling.plan import PlannedStep
from engine.core.scheduling.preemption import Preemption, Preemptor
from engine.core.scheduling.queues import Queues
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.sequence import Sequence
from engine.core.sequence_group import Member, SequenceGroup, Status, schedule_decodes


class Planner:
    """Fills planned steps; what it changes otherwise are groups and blocks."""

    def __init__(
        self,
        block_manager: BlockManager,
        queues: Queues,
        rows: RowAllocator,
        deferred_release: DeferredRelease,
        *,
        preemption: Preemption,
        gate: AdmissionGate,
    ) -> None:
        self._block_manager = block_manager
        self._queues = queues
        self._rows = rows
        self._deferred_release = deferred_release
        self._preemptor = Preemptor(block_manager, queues, deferred_release, preemption)
        self._gate = gate
        # copies that must wait for the next plan
        self._copies: list[tuple[int, int]] = []
        self._prefilling: list[SequenceGroup] = []

    def plan(self, planned: PlannedStep, ready: list[Member], forks: list[BeamFork]) -> None:
        """Plan one step.

        Args:
            planned: a new one.
            ready: see `Queues.ready`.
            forks: all of beams since the last plan.
        """
        self._plan_forks(planned, forks)
        if self._queues.is_probation_over:
            # what it has computed is in the prefix cache or in the swap space when it comes back
            for group in tuple(self._queues.running):
                self._preemptor.preempt(planned, group)
            ready = []
        has_preempted = self._plan_room_for_prompts(planned)
        if has_preempted:
            ready = [member for member in ready if member[0].status is Status.RUNNING]
        had_room = self._plan_decodes(planned, ready) and not has_preempted
        self._plan_prefills(planned)
        # where blocks ran out for running groups, no other group gets any in the same step
        if had_room:
            self._plan_entries(planned)
        if not planned.is_empty:
            pairs = self._block_manager.finish_plan()
            planned.save(pairs, self._swap_keys(slot for _, slot in pairs))
        planned.finish(self._rows)

    @property
    def has_prompts(self) -> bool:
        """Whether a prompt is still to be computed, also of groups that wait."""
        return bool(self._prefilling or self._queues.waiting)

    def num_to_prefill(self, most: int) -> int:
        """Prompt tokens that are still to be computed, also of groups that wait; up to `most`."""
        if not self.has_prompts:
            return 0
        sizes = chain(
            (sequence.num_to_prefill for group in self._prefilling for sequence in group.sequences),
            (len(group.request.prompt) for group in self._queues.waiting),
        )
        num_tokens = 0
        while num_tokens < most and (size := next(sizes, None)) is not None:
            num_tokens += size
        return min(num_tokens, most)

    def should_wait(self) -> bool:
        """Whether to plan nothing yet, so that beam searches stay in step with each other.

        A beam search has nothing to plan while its candidates are in flight. If only searches run
        and some of them wait, a plan now would split them into two halves that take turns, each in
        every other step, and a step takes about as long for a few rows as for twice as many.
        """
        running = self._queues.running
        return (
            all(group.beam is not None and not group.is_prefilling for group in running)
            and any(sequence.num_in_flight for group in running for sequence in group.sequences)
            and self._next_to_enter() is None
        )

    def _plan_forks(self, planned: PlannedStep, forks: list[BeamFork]) -> None:
        """Let rows and block tables follow the forks, before any of these beams grows."""
        for fork in forks:
            # -1 if it has left the batch since
            parent_row = fork.sequence.take_fork_row()
            if parent_row >= 0:
                planned.fork(parent_row, fork.sequence.row)
                planned.update_table(fork.sequence, fork.update)
        planned.copy(self._copies)
        self._copies = []

    def _plan_room_for_prompts(self, planned: PlannedStep) -> bool:
        """Preempt the latest groups for prompts that have no block for their next token.

        A prompt after which no group came waits for earlier ones to end: the earliest of all has
        nobody to wait for, so that prompts which outgrow the pool together come to an end in turn.

        Returns:
            Whether any group was preempted.
        """
        has_preempted = False
        for group in self._prefilling:
            # it may have been preempted for another one
            while group.is_prefilling and not self._has_block(group):
                latest = self._queues.running[-1]
                # blocks that are about to be freed are waited for before any group is preempted
                if self._deferred_release or latest is group:
                    break
                self._preemptor.preempt(planned, latest)
                has_preempted = True
        return has_preempted

    def _has_block(self, group: SequenceGroup) -> bool:
        """Whether there is a block for the next token of a prompt."""
        sequence = next(sequence for sequence in group.sequences if sequence.is_prefilling)
        return self._block_manager.num_extendable(sequence, 1) > 0

    def _plan_decodes(self, planned: PlannedStep, ready: list[Member]) -> bool:
        """Returns whether every group found the blocks it needed, so that others may enter."""
        # one question for the whole batch, as long as blocks and tokens suffice
        sequence_ids = [sequence.sequence_id for _, sequence in ready]
        if len(ready) > planned.num_left or not self._block_manager.can_append(sequence_ids):
            return self._plan_decodes_in_turn(planned)
        self._decode(planned, ready)
        return True

    def _plan_decodes_in_turn(self, planned: PlannedStep) -> bool:
        """Serve groups in order of arrival; the latest are preempted for the earlier ones."""
        had_room = True
        for group in tuple(self._queues.running):
            if planned.num_left == 0:
                break
            # empty for a group that was preempted meanwhile
            ready = group.ready[: planned.num_left]
            if ready and not self._can_append(ready):
                had_room = False
                has_made = self._preemptor.make_room(
                    planned, group, partial(self._can_append, ready)
                )
                ready = ready if has_made else []
            self._decode(planned, [(group, sequence) for sequence in ready])
        return had_room

    def _plan_prefills(self, planned: PlannedStep) -> None:
        self._prefilling = [group for group in self._prefilling if group.is_prefilling]
        for group in self._prefilling:
            self._prefill_group(planned, group)

    def _plan_entries(self, planned: PlannedStep) -> None:
        """Let groups enter in order of arrival, unless the gate lets some overtake."""
        num_open = self._gate.num_open(self._queues.waiting, len(self._queues.running))
        while planned.num_left:
            group = self._next_to_enter()
            if group is None:
                return
            if group.status is Status.SWAPPED:
                self._swap_in(planned, group)
            elif num_open:
                num_open -= 1
                self._admit(planned, group)
            else:
                return

    def _next_to_enter(self) -> SequenceGroup | None:
        if self._queues.are_closed:
            return None
        first, waiting = self._queues.next_in_line, self._queues.waiting
        if first is None or self._can_enter(first):
            return first
        # as in the paper, no new request enters while others are swapped out, but the gate may
        # allow for some that are small enough
        later = waiting.first
        if first.status is not Status.SWAPPED or later is None:
            return None
        may_enter = self._gate.may_overtake(first) and self._can_enter(later)
        return later if may_enter else None

    def _can_enter(self, group: SequenceGroup) -> bool:
        # a preempted group waits until its last plan is complete, so that all its tokens are known
        if not group.is_settled or group.num_rows > self._rows.num_free:
            return False
        if group.is_on_probation and (self._queues.running or self._deferred_release):
            return False
        if group.status is Status.SWAPPED:
            return self._block_manager.can_swap_in(group)
        return self._block_manager.can_allocate(group)

    def _swap_in(self, planned: PlannedStep, group: SequenceGroup) -> None:
        """Bring a group back from the swap space (section 4.5); it decodes in the same step."""
        pairs, allocations = self._block_manager.swap_in(group)
        planned.swap_in(pairs, self._swap_keys(slot for slot, _ in pairs))
        self._enter(planned, group, allocations)
        for allocation in allocations:
            sequence = allocation.sequence
            planned.set_last_token(sequence)
            if planned.num_left and self._can_append([sequence]):
                self._decode(planned, [(group, sequence)])

    def _admit(self, planned: PlannedStep, group: SequenceGroup) -> None:
        """Allocate blocks for a waiting group and start its prefill.

        It is a new group, or one that was preempted and is recomputed: then what it has generated
        is prefilled together with its prompt.
        """
        first = self._queues.next_in_line
        if first is not None and first is not group:
            first.count_overtake()
        allocations = self._block_manager.allocate(group)
        _count_tokens(planned, group, allocations)
        self._enter(planned, group, allocations)
        # only the first looks into the cache; the others share what the first has
        swap_ins = allocations[0].swap_ins
        planned.swap_in(swap_ins, self._swap_keys(slot for slot, _ in swap_ins))
        planned.count_cached(allocations[0].num_cached, allocations[0].num_restored)
        group.start_prefill([allocation.num_cached for allocation in allocations])
        self._prefilling.append(group)
        self._prefill_group(planned, group)

    def _enter(
        self, planned: PlannedStep, group: SequenceGroup, allocations: list[Allocation]
    ) -> None:
        """Give a group rows, also for the siblings that are not forked yet."""
        self._queues.enter(group)
        group.take_rows([self._rows.allocate() for _ in range(group.num_rows)])
        for sequence in group.with_row:
            planned.admit(group, sequence)
        for choice, row in enumerate(group.reserved_rows, start=len(group.sequences)):
            planned.admit_reserved(group, row, choice)
        for allocation in allocations:
            planned.update_table(allocation.sequence, allocation.update)

    def _decode(self, planned: PlannedStep, ready: list[Member]) -> None:
        """Plan one more token of each of these sequences, for which blocks suffice."""
        # a few hundred times per step: names are looked up once
        append = self._block_manager.append
        for group, sequence in ready:
            update = append(sequence.sequence_id)
            if update is not NO_UPDATE:
                planned.update_table(sequence, update)
            if group.beam is not None:
                # the beam search has chosen it, and the row may have sampled another one
                planned.set_last_token(sequence)
        schedule_decodes(ready, planned.step)
        planned.decode(ready)

    def _prefill_group(self, planned: PlannedStep, group: SequenceGroup) -> None:
        # siblings that are forked on the way have nothing to prefill
        for sequence in [s for s in group.sequences if s.is_prefilling]:
            if planned.num_left == 0:
                return
            self._prefill(planned, group, sequence)
            if sequence.is_prefilling:
                # the others share the head of its prompt, which must be written first
                return

    def _prefill(self, planned: PlannedStep, group: SequenceGroup, sequence: Sequence) -> None:
        count = min(planned.num_left, sequence.prefill_end - sequence.num_scheduled)
        if count > planned.max_chunk and self._others_can_prefill(group):
            count = planned.max_chunk
        count = self._block_manager.num_extendable(sequence, count)
        if not count:
            return
        planned.update_table(sequence, self._block_manager.extend(sequence, count))
        samples = planned.prefill(group, sequence, count)
        sequence.schedule_prefill(count, samples=samples, step=planned.step)
        self._block_manager.mark_computed(sequence)
        if samples and not group.is_prefilling:
            planned.end_prefill(group)
        # a beam search has one beam until its first candidates are known
        if samples and group.beam is None:
            while group.num_pending_forks:
                self._fork_sibling(planned, group, sequence)

    def _others_can_prefill(self, group: SequenceGroup) -> bool:
        """Whether another prompt could use what a long one leaves of the budget in this step."""
        return self._prefilling[-1] is not group or self._next_to_enter() is not None

    def _fork_sibling(self, planned: PlannedStep, group: SequenceGroup, parent: Sequence) -> None:
        """Parallel sampling: a further sample shares the blocks of the prompt (section 4.4).

        The last of them is copied when the first of the samples writes into it.
        """
        sibling = group.fork_sibling(parent, planned.step)
        update = self._block_manager.fork(parent.sequence_id, sibling.sequence_id)
        # what the parent's last chunk writes in this step can only be copied before the next one
        self._copies += update.copies
        table = self._block_manager.block_table(sibling.sequence_id)
        planned.update_table(sibling, BlockTableUpdate(tuple(enumerate(table))))
        planned.sibling(group, sibling, parent)

    def _swap_keys(self, swap_blocks: Iterable[int]) -> bytes:
        return self._block_manager.swap_keys(swap_blocks)

    def _can_append(self, sequences: list[Sequence]) -> bool:
        return self._block_manager.can_append([sequence.sequence_id for sequence in sequences])


def _count_tokens(
    planned: PlannedStep, group: SequenceGroup, allocations: list[Allocation]
) -> None:
    """Count what a waiting group has to compute: its prompt, or once more all that is known."""
    if group.has_begun:
        planned.count_again(sum(each.sequence.num_known - each.num_cached for each in allocations))
    elif group.request.pin is None:
        planned.count_prompt(len(group.request.prompt), allocations[0].num_cached)
