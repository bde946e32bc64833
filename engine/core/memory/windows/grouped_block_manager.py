"""The block manager of models with windows: a block table for each group of layers.

All groups take blocks of one size out of one pool. A group whose layers have a window gives back
the blocks that its next token does not see any more. The tables of a sequence are one interleaved
list: logical block `i` of group `g` of `G` is at place `i * G + g`. What was given back, or never
needed because a prefix was found, is the block `nothing`, which is in use for ever.
"""

from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from dataclasses import replace

from engine.config import window_blocks
from engine.core.memory.block_manager import NO_UPDATE, Allocation, BlockTableUpdate
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_table import BlockTable, num_common_blocks, spread
from engine.core.memory.headroom import NO_HEADROOM, Headroom
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.paged_tables import NO_TABLE
from engine.core.memory.prefix_cache import PrefixCache
from engine.core.memory.second_level import SecondLevel
from engine.core.memory.windows.grouped_prefix_index import GroupedPrefixIndex
from engine.core.memory.windows.grouped_table import (
    GroupedTable,
    SwappedTable,
    num_leading,
    num_new_in_groups,
)
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.integers import div_ceil
from engine.types import MemoryUsage

# a beam that is swapped out feeds its last token again
_SLACK = 1


class GroupedBlockManager(PagedBlockManager):
    """See `PagedBlockManager`; prefixes are not pinned, and no unused block is saved."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        windows: Items[int],
        *,
        num_swap_blocks: int = 0,
        headroom: Headroom = NO_HEADROOM,
        prefix_cache: bool = True,
    ) -> None:
        """Make an empty pool.

        Args:
            windows: of each group; 0 for groups that attend to all tokens.
            num_blocks, block_size, num_swap_blocks, headroom, prefix_cache: see
                `PagedBlockManager`.
        """
        super().__init__(
            num_blocks,
            block_size,
            num_swap_blocks=num_swap_blocks,
            headroom=headroom,
            prefix_cache=False,
        )
        self._windows = windows
        self._width = len(windows)
        self._grouped_index: GroupedPrefixIndex | None = None
        self._pool = BlockPool(num_blocks, on_evict=self._evict)
        self._nothing = self._pool.allocate()
        if prefix_cache:
            caches = [PrefixCache(block_size) for _ in windows]
            self.marks = caches[0].marks
            self._grouped_index = GroupedPrefixIndex(
                self._pool, caches, windows, block_size, self._nothing
            )
            self._index = self._grouped_index
        self._second_level = SecondLevel(self._pool, self._index, self._swap)
        self._swapped: dict[int, SwappedTable] = {}
        # positions by sequence id, behind which windows end once the plan is made
        self._passed: dict[int, int] = {}

    def append(self, sequence_id: int) -> BlockTableUpdate:
        """See `BlockManager.append`."""
        table = self._table(sequence_id)
        blocks, count, update = table.blocks, self._width, NO_UPDATE
        index, offset = divmod(table.length, self._block_size)
        first = index * count
        if first == len(blocks):
            self._slide(table, table.length - _SLACK)
            blocks += [self._pool.allocate() for _ in range(count)]
            update = BlockTableUpdate(new_blocks=tuple(enumerate(blocks[first:], first)))
        elif offset:
            shared = [p for p in range(first, len(blocks)) if self._pool.references(blocks[p]) > 1]
            if shared:
                copies = tuple(self._copy(table, place) for place in shared)
                new_blocks = tuple((place, blocks[place]) for place in shared)
                update = BlockTableUpdate(new_blocks=new_blocks, copies=copies)
        for block in blocks[first:]:
            self._fill_block(block, offset + 1)
        table.length += 1
        table.num_slots += count
        self._num_logical += count
        return update

    def fork(self, parent_id: int, child_id: int) -> BlockTableUpdate:
        """See `BlockManager.fork`."""
        parent = self._table(parent_id)
        child = self._table(child_id) if child_id in self._tables else GroupedTable([])
        num_common = num_common_blocks(parent.blocks, child.blocks)
        for block in parent.blocks[num_common:]:
            self._pool.share(block)
        self._release(child.blocks[num_common:])
        self._tables[child_id] = parent.copied()
        self._passed.pop(child_id, None)
        self._index.fork(parent_id, child_id)
        self._num_logical += parent.num_slots - child.num_slots
        return NO_UPDATE

    def mark_computed(self, sequence: Sequence) -> None:
        """See `BlockManager.mark_computed`; windows end behind what comes next."""
        table = self._tables.get(sequence.sequence_id, NO_TABLE)
        self._index.mark_computed(sequence, table.blocks)
        # the plan that is made may still read what windows leave with it
        self._passed[sequence.sequence_id] = sequence.num_scheduled - _SLACK

    def finish_plan(self) -> list[tuple[int, int]]:
        """See `BlockManager.finish_plan`; from now on blocks before windows are free."""
        for sequence_id, position in self._passed.items():
            if sequence_id in self._tables:
                self._slide(self._table(sequence_id), position)
        self._passed.clear()
        return super().finish_plan()

    def free(self, sequence_id: int) -> None:
        """See `BlockManager.free`."""
        self._passed.pop(sequence_id, None)
        self._growing.pop(sequence_id, None)
        if sequence_id in self._tables:
            table = self._table(sequence_id)
            del self._tables[sequence_id]
            self._num_logical -= table.num_slots
            self._release(table.blocks)
        self._index.leave(sequence_id)

    def usage(self) -> MemoryUsage:
        """See `BlockManager.usage`; `nothing` is no part of the pool."""
        usage, size = super().usage(), self._block_size
        return replace(usage, total=usage.total - size, internal=usage.internal - size)

    def num_tokens_kept_by_others(self, group: SequenceGroup) -> int:
        """See `BlockManager.num_tokens_kept_by_others`."""
        return super().num_tokens_kept_by_others(group) // self._width

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """See `BlockManager.swap_out`; `nothing` is left out."""
        tables = {}
        for sequence in group.live:
            self.mark_computed(sequence)
            table = self._table(sequence.sequence_id)
            places = tuple(p for p, block in enumerate(table.blocks) if block != self._nothing)
            tables[sequence.sequence_id] = [table.blocks[place] for place in places]
            self._swapped[sequence.sequence_id] = SwappedTable(table.copied(), places)
        blocks = dict.fromkeys(block for held in tables.values() for block in held)
        keys = {block: self._swap.tag(group.request.request_id) for block in blocks}
        return self._swap.store(tables, keys)

    def discard(self, group: SequenceGroup) -> None:
        """See `BlockManager.discard`."""
        super().discard(group)
        self._forget_swapped(group)

    def give_up(self, group: SequenceGroup) -> None:
        """See `BlockManager.give_up`."""
        super().give_up(group)
        self._forget_swapped(group)

    def spoil(self, blocks: set[int]) -> set[int]:
        """See `BlockManager.spoil`; layers of all groups were computed from each other."""
        sequence_ids = spread(blocks, self._tables, width=self._width, sound={self._nothing})
        for block in blocks:
            self._index.forget(block)
        return sequence_ids

    def _evict(self, block: int) -> None:
        if self._grouped_index is not None:
            self._grouped_index.evict(block)

    def _num_missing(self, table: BlockTable, end: int) -> int:
        """See `PagedTables`; windows give back what they get, but for the first of it."""
        assert isinstance(table, GroupedTable)
        num_mapped = len(table.blocks) // self._width
        num_new = div_ceil(end, self._block_size) - num_mapped
        num_missing = 0
        for window, start in zip(self._windows, table.starts, strict=True):
            num_more = window_blocks(window, self._headroom.most_at_once, self._block_size)
            num_more -= num_mapped - start
            num_missing += min(num_new, max(num_more, 0)) if window else num_new
        return num_missing

    def _allocate(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        prefix: list[int],
        swapped: Collection[int] = (),
    ) -> Allocation:
        """Make block tables that begin with the shared blocks of a prefix."""
        assert not swapped
        count = self._width
        for block in prefix:
            self._pool.share(block)
        end = self._first_end(group, sequence, len(prefix))
        num_new = self._num_blocks(end) - len(prefix)
        num_found, num_seen = len(prefix) // count, 0
        if self._grouped_index is not None:
            num_seen = self._grouped_index.num_seen
        table = GroupedTable(
            prefix + [self._pool.allocate() for _ in range(num_new)],
            starts=[num_leading(self._nothing, prefix[g::count]) for g in range(count)],
            ends=(len(sequence.prompt) // self._block_size, num_found, num_seen),
        )
        self._tables[sequence.sequence_id] = table
        if end < sequence.num_known:
            self._growing[sequence.sequence_id] = sequence.num_known
        self._index.enter(group, sequence, num_found)
        self._fill(table, end)
        update = BlockTableUpdate(tuple(enumerate(table.blocks)))
        return Allocation(sequence, update, num_found * self._block_size)

    def _distinct_blocks(self, group: SequenceGroup) -> list[int]:
        return [block for block in super()._distinct_blocks(group) if block != self._nothing]

    def _table(self, sequence_id: int) -> GroupedTable:
        table = self._tables[sequence_id]
        assert isinstance(table, GroupedTable)
        return table

    def _num_to_grow(self, tables: list[BlockTable], num_users: Callable[[int], int]) -> int:
        """See `num_new_blocks`; what windows give back meanwhile is not counted."""
        return num_new_in_groups(tables, self._block_size, self._width, num_users)

    def _returned(self, sequence: Sequence, blocks: list[int]) -> BlockTable:
        table = self._swapped.pop(sequence.sequence_id).returned(blocks, self._nothing)
        for _ in range(table.blocks.count(self._nothing)):
            self._pool.share(self._nothing)
        return table

    def _slide(self, table: GroupedTable, position: int) -> None:
        """Give back the blocks that no token from a position on sees."""
        count, size = self._width, self._block_size
        for group, window in enumerate(self._windows):
            end = (position - window + 1) // size if window else 0
            for index in range(table.starts[group], end):
                place = index * count + group
                block, table.blocks[place] = table.blocks[place], self._nothing
                self._pool.share(self._nothing)
                is_end = self._is_end(table, group, index)
                release = self._pool.release if is_end else self._pool.release_first
                if release(block):
                    self._num_filled -= self._filled[block]
                    self._filled[block] = 0
                table.num_slots -= size
                self._num_logical -= size
            table.starts[group] = max(table.starts[group], end)

    def _is_end(self, table: GroupedTable, group: int, index: int) -> bool:
        """Whether a group needs a block where later prompts may go on."""
        if self._grouped_index is None:
            return False
        return table.is_end(index, self._grouped_index.num_needed[group])

    def _copy(self, table: GroupedTable, place: int) -> tuple[int, int]:
        source, copy = table.blocks[place], self._pool.allocate()
        self._pool.release(source)
        table.blocks[place] = copy
        self._fill_block(copy, table.length % self._block_size)
        return source, copy

    def _fill(self, table: BlockTable, num_tokens: int) -> None:
        """Count positions [length, length + num_tokens), those of shared blocks once."""
        assert isinstance(table, GroupedTable)
        count, size, end = self._width, self._block_size, table.length + num_tokens
        for place in range(table.length // size * count, len(table.blocks)):
            block = table.blocks[place]
            if block != self._nothing:
                first = place // count * size
                filled = min(end - first, size)
                self._fill_block(block, filled)
                num_more = filled - max(table.length - first, 0)
                table.num_slots += num_more
                self._num_logical += num_more
        table.length = end

    def _forget_swapped(self, group: SequenceGroup) -> None:
        for sequence in group.sequences:
            if sequence.sequence_id not in self._swap.tables:
                self._swapped.pop(sequence.sequence_id, None)
