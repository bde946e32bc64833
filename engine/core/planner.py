"""Decides who moves in one step, and who has to give way (paper, section 4.5).

Each step mixes one token of every running sequence with chunks of prompts, under a token budget.
When blocks run out the latest group is preempted as a whole: its blocks are swapped out, or
dropped and its tokens prefilled again later.
"""

from engine.core.admission_gate import AdmissionGate
from engine.core.decoding import Fork
from engine.core.memory import NO_GROWTH, Admitted, Growth, Memory
from engine.core.plan import PlanBuilder
from engine.core.preemption import Preemption
from engine.core.queues import Queues
from engine.core.retirement import Retirement
from engine.core.rows import Rows
from engine.core.sequence import Sequence, SequenceGroup, Status


class Planner:
    """Fills plans.

    Attributes:
        forked: sequences that go on as another one with the next plan.
        num_recomputed, num_swapped_out, num_cached_tokens: see `StepStats`.
    """

    def __init__(
        self,
        memory: Memory,
        queues: Queues,
        rows: Rows,
        retirement: Retirement,
        *,
        preemption: Preemption,
        gate: AdmissionGate,
    ) -> None:
        self.forked: list[Fork] = []
        self.num_recomputed = 0
        self.num_swapped_out = 0
        self.num_cached_tokens = 0
        self._memory = memory
        self._queues = queues
        self._rows = rows
        self._retirement = retirement
        self._preemption = preemption
        self._gate = gate
        self._copies: list[tuple[int, int]] = []
        self._prefilling: list[SequenceGroup] = []

    def plan(self, builder: PlanBuilder, ready: list[tuple[SequenceGroup, Sequence]]) -> None:
        """Plan one step, given `Queues.ready`."""
        self._plan_forks(builder)
        had_room = self._plan_decodes(builder, ready)
        self._plan_prefills(builder)
        if had_room:
            self._plan_entries(builder)

    def should_wait(self) -> bool:
        """Whether to plan nothing while a search is under way whose next step could be planned too.

        That is while nobody moves but searches. Apart, each of them would have every other step for
        itself, and a step takes about as long for a few rows as for twice as many.
        """
        running = self._queues.running
        return (
            all(group.beam is not None and not group.is_prefilling for group in running)
            and any(sequence.num_in_flight for group in running for sequence in group.sequences)
            and self._next_to_enter() is None
        )

    def _plan_forks(self, builder: PlanBuilder) -> None:
        """Let rows and blocks follow the forks since the last plan, before any of them grows."""
        for fork in self.forked:
            sequence = fork.sequence
            if sequence.fork_row >= 0:
                builder.fork(sequence.fork_row, sequence.row)
                builder.grow(sequence, fork.growth)
                sequence.fork_row = -1
        self.forked.clear()
        builder.copy(self._copies)
        self._copies = []

    def _plan_decodes(
        self, builder: PlanBuilder, ready: list[tuple[SequenceGroup, Sequence]]
    ) -> bool:
        """Returns whether every group found the blocks it needed, so that others may enter."""
        # one question for the whole batch, as long as nothing is short
        sequence_ids = [sequence.sequence_id for _, sequence in ready]
        if len(ready) > builder.num_left or not self._memory.can_append(sequence_ids):
            return self._plan_decodes_in_turn(builder)
        self._decode(builder, ready)
        return True

    def _plan_decodes_in_turn(self, builder: PlanBuilder) -> bool:
        had_room = True
        for group in tuple(self._queues.running):
            if builder.num_left == 0:
                break
            ready = group.ready[: builder.num_left]
            if ready and not self._can_append(ready):
                had_room = False
                ready = ready if self._make_room(builder, group, ready) else []
            self._decode(builder, [(group, sequence) for sequence in ready])
        return had_room

    def _plan_prefills(self, builder: PlanBuilder) -> None:
        self._prefilling = [group for group in self._prefilling if group.is_prefilling]
        for group in self._prefilling:
            self._prefill_group(builder, group)

    def _plan_entries(self, builder: PlanBuilder) -> None:
        """Bring in groups in order of arrival, unless the gate lets some overtake."""
        num_open = self._gate.num_open(self._queues.waiting, len(self._queues.running))
        while builder.num_left:
            group = self._next_to_enter()
            if group is None:
                return
            if group.status is Status.SWAPPED:
                self._swap_in(builder, group)
            elif num_open:
                num_open -= 1
                self._admit(builder, group)
            else:
                return

    def _next_to_enter(self) -> SequenceGroup | None:
        first, waiting = self._queues.next_in_line, self._queues.waiting
        if first is None or self._can_enter(first):
            return first
        if first.status is not Status.SWAPPED or not waiting or not self._gate.may_overtake(first):
            return None
        return waiting[0] if self._can_enter(waiting[0]) else None

    def _can_enter(self, group: SequenceGroup) -> bool:
        # a preempted group waits until its last plan is complete, so that all its tokens are known
        num_rows = len(group.with_row) + group.num_unborn
        if not group.is_settled or num_rows > self._rows.num_free:
            return False
        if group.status is Status.SWAPPED:
            return self._memory.can_swap_in(group)
        return self._memory.can_admit(group)

    def _swap_in(self, builder: PlanBuilder, group: SequenceGroup) -> None:
        pairs, admitted = self._memory.swap_in(group)
        builder.swap_in(pairs)
        self._enter(builder, group, admitted)
        for entry in admitted:
            builder.set_last_token(entry.sequence)
            if builder.num_left and self._can_append([entry.sequence]):
                self._decode(builder, [(group, entry.sequence)])

    def _admit(self, builder: PlanBuilder, group: SequenceGroup) -> None:
        first = self._queues.next_in_line
        if first is not None and first is not group:
            first.num_overtakes += 1
        admitted = self._memory.admit(group)
        self._enter(builder, group, admitted)
        # the others share with the first, which alone may have found something in the cache
        self.num_cached_tokens += admitted[0].num_cached
        if group.num_cached_tokens < 0:
            group.num_cached_tokens = admitted[0].num_cached
        for entry in admitted:
            entry.sequence.prefill_end = entry.sequence.num_known
            entry.sequence.num_scheduled = entry.num_cached
        self._prefilling.append(group)
        self._prefill_group(builder, group)

    def _enter(self, builder: PlanBuilder, group: SequenceGroup, admitted: list[Admitted]) -> None:
        """Give a group rows, also for the siblings that are not born yet."""
        self._queues.enter(group)
        for sequence in group.with_row:
            sequence.row = self._rows.take()
            builder.admit(group, sequence)
        for choice in range(len(group.sequences), group.num_sequences):
            group.spare_rows.append(self._rows.take())
            builder.admit_spare(group, group.spare_rows[-1], choice)
        for entry in admitted:
            builder.grow(entry.sequence, entry.growth)

    def _decode(self, builder: PlanBuilder, ready: list[tuple[SequenceGroup, Sequence]]) -> None:
        # a few hundred times per step: names are looked up once
        append, step = self._memory.append, builder.step
        for group, sequence in ready:
            growth = append(sequence.sequence_id)
            if growth is not NO_GROWTH:
                builder.grow(sequence, growth)
            if group.beam is not None:
                builder.set_last_token(sequence)
            sequence.num_scheduled += 1
            sequence.num_in_flight += 1
            sequence.last_step = step
        builder.decode(ready)

    def _prefill_group(self, builder: PlanBuilder, group: SequenceGroup) -> None:
        # siblings that are born on the way have nothing to prefill
        for sequence in [s for s in group.sequences if s.is_prefilling]:
            if builder.num_left == 0:
                return
            self._prefill(builder, group, sequence)
            if sequence.is_prefilling:
                # the others share the head of its prompt, which must be written first
                return

    def _prefill(self, builder: PlanBuilder, group: SequenceGroup, sequence: Sequence) -> None:
        count = min(builder.num_left, sequence.prefill_end - sequence.num_scheduled)
        if count > builder.max_chunk and self._others_can_prefill(group):
            count = builder.max_chunk
        samples = builder.prefill(group, sequence, count)
        sequence.num_scheduled += count
        sequence.num_in_flight += samples
        sequence.last_step = builder.step
        self._memory.commit(sequence)
        if samples and group.beam is None:
            while group.num_unborn:
                self._bear_sibling(builder, group, sequence)

    def _others_can_prefill(self, group: SequenceGroup) -> bool:
        """Whether somebody could use what a long prompt leaves of the budget in this step."""
        return self._prefilling[-1] is not group or self._next_to_enter() is not None

    def _bear_sibling(self, builder: PlanBuilder, group: SequenceGroup, parent: Sequence) -> None:
        sibling = group.bear_sibling()
        # what the parent's last chunk writes in this step can only be copied before the next one
        self._copies += self._memory.fork(parent.sequence_id, sibling.sequence_id).copies
        table = self._memory.block_table(sibling.sequence_id)
        builder.grow(sibling, Growth(tuple(enumerate(table))))
        builder.sibling(group, sibling, parent)
        sibling.prefill_end, sibling.num_scheduled = parent.prefill_end, parent.num_scheduled
        sibling.num_in_flight = 1
        sibling.last_step = builder.step

    def _can_append(self, sequences: list[Sequence]) -> bool:
        return self._memory.can_append([sequence.sequence_id for sequence in sequences])

    def _make_room(self, builder: PlanBuilder, group: SequenceGroup, ready: list[Sequence]) -> bool:
        """Preempt the latest groups until these can grow; False if they must wait."""
        while not self._can_append(ready):
            # blocks on their way back are waited for before anybody else is preempted
            if self._retirement:
                return False
            victim = self._queues.running[-1]
            self._preempt(builder, victim)
            if victim is group:
                return False
        return True

    def _preempt(self, builder: PlanBuilder, group: SequenceGroup) -> None:
        """Take a group out of the batch, to come back by swap-in or by prefilling again."""
        if group.beam is not None:
            group.beam.withdraw_offers()
        swap = self._prefers_swap(group)
        group.num_untold_preemptions += 1
        self._queues.preempt(group, swap=swap)
        if swap:
            self.num_swapped_out += 1
            self._swap_out(builder, group)
        else:
            self.num_recomputed += 1
            for sequence in group.live:
                # what is left of it when it comes back need not be computed again
                self._memory.commit(sequence)
                sequence.restart()
        self._retirement.add(group.with_row)
        self._retirement.give_back_spares(group)

    def _swap_out(self, builder: PlanBuilder, group: SequenceGroup) -> None:
        builder.swap_out(self._memory.swap_out(group))
        for sequence in group.live:
            sequence.last_step = builder.step
            if group.beam is not None:
                # its candidates in flight come too late
                sequence.rewind()

    def _prefers_swap(self, group: SequenceGroup) -> bool:
        if any(sequence.is_prefilling for sequence in group.live):
            return False
        if not self._memory.can_swap_out(group):
            return False
        num_blocks = self._memory.num_distinct_blocks(group)
        num_kept = self._memory.num_kept_tokens(group)
        return self._preemption.prefers_swap(group, num_blocks, num_kept)
