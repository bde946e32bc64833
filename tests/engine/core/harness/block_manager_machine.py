"""A state machine for the paged block manager: its tables over a modelled pool."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import SchedulerConfig
from engine.core.memory.block_manager import Allocation, BlockTableUpdate
from engine.core.memory.headroom import NO_HEADROOM
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.scheduling.grouping import make_group
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup, Status
from engine.errors import RequestError
from engine.integers import div_ceil
from engine.types import Capacity, FinishReason, IntColumn, Request, SamplingParams, int32, int64

NUM_BLOCKS = 8
NUM_SWAP_BLOCKS = 6
CONFIG = SchedulerConfig(max_num_batched_tokens=1, max_model_len=24, prompt_share=1.0)


class PagedBlockManagerMachine(RuleBasedStateMachine):
    """Model: each token slot of the pool holds the tokens that lead to it.

    Attributes:
        tables: blocks by sequence id, from the updates of the block manager.
        contents: by block, the prefix at each offset; None for what was never written.
    """

    @initialize(
        block_size=st.integers(1, 4),
        prefix_cache=st.booleans(),
        most_saved=st.integers(0, 3),
        most_at_once=st.sampled_from((1, 3, 100)),
    )
    def start(
        self, block_size: int, prefix_cache: bool, most_saved: int, most_at_once: int
    ) -> None:
        self.capacity = Capacity(num_blocks=NUM_BLOCKS, block_size=block_size, num_rows=3)
        self.most_at_once = most_at_once
        self.manager = PagedBlockManager(
            NUM_BLOCKS,
            block_size,
            num_swap_blocks=NUM_SWAP_BLOCKS,
            headroom=replace(NO_HEADROOM, most_at_once=most_at_once),
            prefix_cache=prefix_cache,
        )
        if prefix_cache:
            self.manager.use_second_level(most_saved, int64())
        self.next_id = 0
        self.groups: list[SequenceGroup] = []
        self.tables: dict[int, list[int]] = {}
        empty: list[IntColumn | None] = [None] * block_size
        self.contents = [list(empty) for _ in range(NUM_BLOCKS)]
        self.swapped = [list(empty) for _ in range(NUM_SWAP_BLOCKS)]

    def as_asked(self, can: bool, fits: bool) -> bool:
        """Whether a command may be given: exactly where it finds the blocks that it needs."""
        assert can == fits
        return can

    def where(self, status: Status) -> list[SequenceGroup]:
        return [group for group in self.groups if group.status is status]

    @property
    def decoding(self) -> list[SequenceGroup]:
        return [group for group in self.where(Status.RUNNING) if not group.is_prefilling]

    @property
    def prefilling(self) -> list[SequenceGroup]:
        return [group for group in self.where(Status.RUNNING) if group.is_prefilling]

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 10),
        salt=st.sampled_from((b"", b"a")),
    )
    def arrive(self, prompt: list[int], n: int, max_tokens: int, salt: bytes) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, n=n)
        request = Request(
            request_id=self.next_id, prompt=int32(prompt), sampling=sampling, salt=salt
        )
        try:
            self.groups.append(make_group(request, self.next_id, CONFIG, self.capacity))
        except RequestError:
            return
        self.next_id += n

    @precondition(lambda self: self.where(Status.WAITING))
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.where(Status.WAITING)))
        trial = copy.deepcopy(self.manager)

        def enter() -> None:
            trial.allocate(group)
            # what prompts in the pool have still to get is left for them
            self._extend_all(trial, self.manager._growing)

        if self.as_asked(self.manager.can_allocate(group), _succeeds(enter)):
            allocations = self.manager.allocate(group)
            self._finish_plan()
            self._restore(allocations[0].swap_ins)
            self._enter(group, allocations, is_prefill=True)

    def _extend_all(self, trial: PagedBlockManager, sequence_ids: Iterable[int]) -> None:
        sequences = {s.sequence_id: s for group in self.prefilling for s in group.live}
        for sequence_id in sequence_ids:
            sequence = sequences[sequence_id]
            trial.extend(sequence, sequence.num_known - sequence.num_scheduled)

    @precondition(lambda self: self.prefilling)
    @rule(data=st.data(), most=st.integers(1, 6))
    def extend(self, data: st.DataObject, most: int) -> None:
        group = data.draw(st.sampled_from(self.prefilling))
        [sequence] = group.live
        most = min(most, sequence.num_known - sequence.num_scheduled)
        count = self.manager.num_extendable(sequence, most)
        earlier = list(takewhile(lambda key: key != sequence.sequence_id, self.manager._growing))
        spare = copy.deepcopy(self.manager)
        if not _succeeds(lambda: self._extend_all(spare, earlier)):
            # nothing is left for it but what it has
            assert div_ceil(sequence.num_scheduled + count, self.capacity.block_size) <= len(
                self.tables[sequence.sequence_id]
            )
            most = 0
        for more in range(max(count, 1), most + 1):
            trial = copy.deepcopy(self.manager)

            def go_on(trial: PagedBlockManager = trial, more: int = more) -> None:
                trial.extend(sequence, more)
                self._extend_all(trial, earlier)

            self.as_asked(more <= count, _succeeds(go_on))
        if count:
            self._grow(sequence, self.manager.extend(sequence, count))
            self._compute(sequence, sequence.num_scheduled + count)
            self._finish_plan()

    @precondition(lambda self: self.decoding)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data: st.DataObject, token: int) -> None:
        group = data.draw(st.sampled_from(self.decoding))
        sequences = [s for s in group.live if len(s.output) < group.max_tokens - 1]
        sequences = sequences[: data.draw(st.integers(1, 3))]
        ids = [sequence.sequence_id for sequence in sequences]
        trial = copy.deepcopy(self.manager)
        fits = _succeeds(lambda: [trial.append(sequence_id) for sequence_id in ids])
        fits = self.as_asked(self.manager.can_append(ids), fits)
        for sequence in sequences if fits else ():
            update = self.manager.append(sequence.sequence_id)
            self._finish_plan()
            # only the order of the sequences may matter for who copies
            self._grow(sequence, update)
            sequence.append_beam_token(token)
            self._write(sequence, sequence.num_scheduled)
            sequence.num_scheduled += 1

    @precondition(lambda self: self.decoding)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.decoding))
        parent = data.draw(st.sampled_from(group.live))
        if not parent.output:
            return
        choice = data.draw(st.integers(0, group.num_sequences - 1))
        if choice == parent.choice:
            return
        # rows mean nothing here
        group.reserved_rows += range(choice + 1 - len(group.sequences))
        while len(group.sequences) < choice:
            group.fork_sibling(parent, step=0).finish(FinishReason.STOP)
        child = group.fork_beam(parent, choice)
        self.manager.fork(parent.sequence_id, child.sequence_id)
        self.tables[child.sequence_id] = list(self.tables[parent.sequence_id])

    @precondition(lambda self: self.where(Status.RUNNING))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.where(Status.RUNNING)))
        sequence = data.draw(st.sampled_from(group.live))
        self._leave(sequence)
        sequence.finish(FinishReason.STOP)
        if not group.live:
            self.groups.remove(group)

    @precondition(lambda self: self.where(Status.RUNNING))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.where(Status.RUNNING)))
        swap = data.draw(st.booleans()) and not group.is_prefilling
        blocks = {block for s in group.live for block in self.held(s)}
        assert self.manager.num_distinct_blocks(group) == len(blocks)
        room = len(self.swapped) - self.manager.usage().swapped // self.capacity.block_size
        assert self.manager.can_swap_out(group) == (len(blocks) <= room)
        if swap and len(blocks) <= room:
            pairs = self.manager.swap_out(group)
            copied = [block for block, _ in pairs]
            assert len(set(copied)) == len(copied), "not each block once"
            assert blocks.issuperset(copied)
            self._save(pairs)
            group.status = Status.SWAPPED
        else:
            group.status = Status.WAITING
        for sequence in group.live:
            self._leave(sequence)
        self._finish_plan()

    @precondition(lambda self: self.where(Status.SWAPPED))
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.where(Status.SWAPPED)))
        trial = copy.deepcopy(self.manager)

        def come_back() -> None:
            trial.swap_in(group)
            for sequence in group.live:
                trial.append(sequence.sequence_id)
            # as for a group that enters
            self._extend_all(trial, self.manager._growing)

        fits = self.as_asked(self.manager.can_swap_in(group), _succeeds(come_back))
        if not fits:
            return
        pairs, allocations = self.manager.swap_in(group)
        self._finish_plan()
        self._restore(pairs)
        self._enter(group, allocations, is_prefill=False)

    @precondition(lambda self: self.where(Status.SWAPPED))
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.where(Status.SWAPPED)))
        for sequence in group.sequences:
            sequence.finish_reason = FinishReason.ABORT
        self.manager.discard(group)
        self.groups.remove(group)

    @invariant()
    def everyone_reads_its_own_prefix(self) -> None:
        size = self.capacity.block_size
        for group in self.where(Status.RUNNING):
            for sequence in group.live:
                table = self.tables[sequence.sequence_id]
                assert self.manager.block_table(sequence.sequence_id) == tuple(table)
                assert len(table) == div_ceil(sequence.num_scheduled, size)
                for position in range(sequence.num_scheduled):
                    found = self.contents[table[position // size]][position % size]
                    assert found == sequence.known_tokens(0, position + 1)

    @invariant()
    def usage_sums_to_the_pool(self) -> None:
        size, usage = self.capacity.block_size, self.manager.usage()
        live = [s for group in self.where(Status.RUNNING) for s in group.live]
        held = {block for sequence in live for block in self.held(sequence)}
        filled = {
            (self.tables[s.sequence_id][position // size], position % size)
            for s in live
            for position in range(s.num_scheduled)
        }
        assert usage.filled == len(filled)
        assert usage.internal == len(held) * size - len(filled)
        assert usage.cached + usage.free == (NUM_BLOCKS - len(held)) * size
        assert usage.shared_saving == sum(s.num_scheduled for s in live) - len(filled)
        assert usage.total == NUM_BLOCKS * size

    @invariant()
    def nothing_is_left_of_groups_that_are_gone(self) -> None:
        if not self.groups:
            usage = self.manager.usage()
            assert (usage.filled, usage.internal, usage.swapped) == (0, 0, 0)

    def held(self, sequence: Sequence) -> list[int]:
        """Blocks of a sequence."""
        return self.tables[sequence.sequence_id]

    def _enter(
        self, group: SequenceGroup, allocations: list[Allocation], *, is_prefill: bool
    ) -> None:
        group.status = Status.RUNNING
        assert [allocation.sequence for allocation in allocations] == group.live
        for allocation in allocations:
            sequence = allocation.sequence
            self.tables[sequence.sequence_id] = []
            self._grow(sequence, allocation.update)
            assert allocation.num_cached < sequence.num_known or not is_prefill
            sequence.prefill_end = sequence.num_known
            if not is_prefill:
                sequence.num_scheduled = sequence.num_known
                continue
            sequence.num_scheduled = allocation.num_cached
            # others than the first share what it has
            most = self.most_at_once if len(allocations) == 1 else sequence.num_known
            self._compute(sequence, min(sequence.num_scheduled + most, sequence.num_known))

    def _compute(self, sequence: Sequence, end: int) -> None:
        for position in range(sequence.num_scheduled, end):
            self._write(sequence, position)
        sequence.num_scheduled = end
        self.manager.mark_computed(sequence)

    def _save(self, pairs: Iterable[tuple[int, int]]) -> None:
        for block, swap_block in pairs:
            self.swapped[swap_block] = list(self.contents[block])

    def _restore(self, pairs: Iterable[tuple[int, int]]) -> None:
        for swap_block, block in pairs:
            self.contents[block] = list(self.swapped[swap_block])

    def _finish_plan(self) -> None:
        self._save(self.manager.finish_plan())

    def _grow(self, sequence: Sequence, update: BlockTableUpdate) -> None:
        for source, destination in update.copies:
            self.contents[destination] = list(self.contents[source])
        table = self.tables[sequence.sequence_id]
        for index, block in update.new_blocks:
            assert index <= len(table)
            table[index : index + 1] = [block]

    def _write(self, sequence: Sequence, position: int) -> None:
        index, offset = divmod(position, self.capacity.block_size)
        block = self.tables[sequence.sequence_id][index]
        self.contents[block][offset] = sequence.known_tokens(0, position + 1)

    def _leave(self, sequence: Sequence) -> None:
        self.manager.mark_computed(sequence)
        self.manager.free(sequence.sequence_id)
        del self.tables[sequence.sequence_id]


def _succeeds(command: Callable[[], object]) -> bool:
    """Whether a command finds the blocks that it allocates."""
    try:
        command()
    except LookupError:
        return False
    return True
