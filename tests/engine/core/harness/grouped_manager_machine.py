"""The state machine of the block manager, for models with windows."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from engine.core.memory.block_manager import Allocation
from engine.core.memory.headroom import NO_HEADROOM
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.windows.grouped_block_manager import GroupedBlockManager
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup, Status
from engine.integers import div_ceil
from engine.types import Capacity
from tests.engine.core.harness.block_manager_machine import (
    NUM_BLOCKS,
    NUM_SWAP_BLOCKS,
    PagedBlockManagerMachine,
)


class GroupedBlockManagerMachine(PagedBlockManagerMachine):
    """Model: a group's blocks hold the tokens that lead to each of their slots, and the group."""

    @initialize(
        block_size=st.integers(1, 4),
        prefix_cache=st.booleans(),
        windows=st.sampled_from([(0, 3), (0, 1, 6), (2,), (0, 0, 5), (3, 8)]),
        most_at_once=st.sampled_from((1, 3, 100)),
    )
    def start(
        self, block_size: int, prefix_cache: bool, windows: tuple[int, ...], most_at_once: int
    ) -> None:
        num_blocks = NUM_BLOCKS * len(windows) + 1
        num_swap_blocks = NUM_SWAP_BLOCKS * len(windows)
        self.capacity = Capacity(
            num_blocks=num_blocks, block_size=block_size, num_rows=3, windows=windows
        )
        self.most_at_once = most_at_once
        self.manager = GroupedBlockManager(
            num_blocks,
            block_size,
            windows,
            num_swap_blocks=num_swap_blocks,
            headroom=replace(NO_HEADROOM, most_at_once=most_at_once),
            prefix_cache=prefix_cache,
        )
        self.next_id = 0
        self.groups = []
        self.tables = {}
        self.contents = [[None] * block_size for _ in range(num_blocks)]
        self.swapped = [[None] * block_size for _ in range(num_swap_blocks)]

    def as_asked(self, can: bool, fits: bool) -> bool:
        # what windows leave while sequences grow may be enough, and is not counted
        assert fits or not can
        return can

    def _extend_all(self, trial: PagedBlockManager, sequence_ids: Iterable[int]) -> None:
        # windows give back what they get
        pass

    @invariant()
    def everyone_reads_its_own_prefix(self) -> None:
        size, windows = self.capacity.block_size, self.capacity.windows
        for group in self.where(Status.RUNNING):
            for sequence in group.live:
                table = self.tables[sequence.sequence_id]
                assert len(table) == div_ceil(sequence.num_scheduled, size) * len(windows)
                # the next token may be fed again
                next_position = sequence.num_scheduled - 1
                for number, window in enumerate(windows):
                    first = max(next_position - window + 1, 0) if window else 0
                    for position in range(first, sequence.num_scheduled):
                        block = table[position // size * len(windows) + number]
                        found = self.contents[block][position % size]
                        assert found == self._content(sequence, position, number)

    @invariant()
    def windows_hold_few_blocks(self) -> None:
        count = len(self.capacity.windows)
        for group in self.where(Status.RUNNING):
            for sequence in group.live:
                table = self.manager.block_table(sequence.sequence_id)
                for number, window in enumerate(self.capacity.windows):
                    num_held = sum(block != 0 for block in table[number::count])
                    # the window may begin within a block, and its end be a block ahead
                    assert not window or num_held <= window // self.capacity.block_size + 3

    @invariant()
    def usage_sums_to_the_pool(self) -> None:
        size, usage = self.capacity.block_size, self.manager.usage()
        live = [s for group in self.where(Status.RUNNING) for s in group.live]
        places = [
            (block, min(s.num_scheduled - place // len(self.capacity.windows) * size, size))
            for s in live
            for place, block in enumerate(self.manager.block_table(s.sequence_id))
            if block
        ]
        held = {block for block, _ in places}
        filled = sum(max(n for b, n in places if b == block) for block in held)
        assert usage.filled == filled
        assert usage.internal == len(held) * size - filled
        assert usage.shared_saving == sum(count for _, count in places) - filled
        assert usage.total == self.capacity.num_slots
        assert usage.cached + usage.free == usage.total - len(held) * size

    def held(self, sequence: Sequence) -> list[int]:
        # block 0 stands for what is released
        return [block for block in self.manager.block_table(sequence.sequence_id) if block]

    def _enter(
        self, group: SequenceGroup, allocations: list[Allocation], *, is_prefill: bool
    ) -> None:
        super()._enter(group, allocations, is_prefill=is_prefill)
        # what windows have left is free once the plan that reads it is made
        self._finish_plan()

    def _content(self, sequence: Sequence, position: int, number: int) -> object:
        return number, sequence.known_tokens(0, position + 1).tolist()

    def _write(self, sequence: Sequence, position: int) -> None:
        index, offset = divmod(position, self.capacity.block_size)
        count = len(self.capacity.windows)
        for number in range(count):
            block = self.tables[sequence.sequence_id][index * count + number]
            content = self._content(sequence, position, number)
            self.contents[block][offset] = content  # type: ignore[call-overload]
