"""The paged block manager: which groups get block tables, shared prefixes, swapping (section 4)."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import takewhile, zip_longest

from engine.core.memory.block_manager import Allocation, BlockTableUpdate
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_table import BlockTable, spread
from engine.core.memory.headroom import NO_HEADROOM, Headroom
from engine.core.memory.paged_tables import NO_TABLE, PagedTables
from engine.core.memory.pinned_prefixes import (
    NO_PINS,
    NoPinnedPrefixes,
    PinLimits,
    PinnedPrefixes,
)
from engine.core.memory.prefix_cache import PrefixCache
from engine.core.memory.prefix_index import PrefixIndex
from engine.core.memory.prefix_marks import NoPrefixMarks, PrefixMarks
from engine.core.memory.second_level import SecondLevel
from engine.core.memory.swap_space import SwapSpace
from engine.core.sequence import UNFINISHED, Sequence
from engine.core.sequence_group import SequenceGroup
from engine.types import IntColumn, MemoryUsage, PoolSnapshot, int32


class PagedBlockManager(PagedTables):
    """Lets groups enter the pool, leave it for the swap space and come back.

    A part of the pool is kept free when a group enters (see `Headroom`), so that running ones can
    grow for a while before one of them must be preempted.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_swap_blocks: int = 0,
        headroom: Headroom = NO_HEADROOM,
        prefix_cache: bool = True,
        pins: PinLimits = NO_PINS,
    ) -> None:
        """Make an empty pool.

        Args:
            num_blocks: blocks of the pool.
            block_size: tokens per block.
            num_swap_blocks: blocks that fit the swap space. Groups may hold as many of them as the
                pool has blocks (paper, section 4.5).
            headroom: what a group takes when it enters, and what stays free.
            prefix_cache: whether full blocks are kept for later prompts.
            pins: what pinned prefixes may take.
        """
        super().__init__(BlockPool(num_blocks, on_evict=self._evict), block_size, headroom)
        self.prefixes: PinnedPrefixes | NoPinnedPrefixes = NoPinnedPrefixes()
        self.marks: PrefixMarks | NoPrefixMarks = NoPrefixMarks()
        self._cache = PrefixCache(block_size)
        if prefix_cache:
            self.marks = self._cache.marks
            self._index = PrefixIndex(self._pool, self._cache, block_size)
            self.prefixes = PinnedPrefixes(self._pool, self._cache, block_size, pins)
        self._swap = SwapSpace(num_swap_blocks, most_swapped=num_blocks)
        self._second_level = SecondLevel(self._pool, self._index, self._swap)

    def use_second_level(self, most_saved: int, keys: IntColumn) -> None:
        """Make what swapped groups leave free a second level of the prefix cache.

        Args:
            most_saved: blocks that each plan may copy there before the pool loses them.
            keys: what is there already, see `Capacity`.
        """
        self._second_level.open(most_saved, keys)

    def can_allocate(self, group: SequenceGroup) -> bool:
        """See `BlockManager.can_allocate`; nothing is kept free in an empty pool."""
        first, *others = group.live
        hits = self._index.match(group, first)
        num_found = len(hits) + len(self._second_level.find(first, len(hits)))
        num_blocks = self._num_blocks(self._first_end(group, first, num_found)) - len(hits)
        num_blocks += sum(
            self._num_blocks(other.num_known) - self._num_shared_blocks(other) for other in others
        )
        # a hit that no sequence uses counts as free until it is shared, unless it is pinned
        num_blocks += sum(self._pool.is_free(block) for block in hits)
        return self._has_room(num_blocks)

    def allocate(self, group: SequenceGroup) -> list[Allocation]:
        """See `BlockManager.allocate` (paper, section 4.3).

        The first sequence shares what the prefix cache has of its prompt, and gets new blocks for
        the rest, some of which the swap space may have; a long prompt only for what comes first
        (see `extend`). There are others if the group was preempted after it had forked: they share
        the full blocks of the prompt with the first, as they did before (section 4.4).
        """
        first, *others = group.live
        hits = self._index.match(group, first)
        # before others are evicted, whose places these could be
        swapped = self._second_level.take(first, len(hits))
        allocations = [self._allocate(group, first, hits, swapped)]
        blocks = self._tables[first.sequence_id].blocks
        return allocations + [
            self._allocate(group, other, blocks[: self._num_shared_blocks(other)])
            for other in others
        ]

    def usage(self) -> MemoryUsage:
        """See `BlockManager.usage`."""
        return self._usage(self._swap.num_used)

    def snapshot(self, sequence_ids: Iterable[int]) -> PoolSnapshot:
        """See `BlockManager.snapshot`."""
        lens, tables = int32(), int32()
        for sequence_id in sequence_ids:
            blocks = self._tables.get(sequence_id, NO_TABLE).blocks
            lens.append(len(blocks))
            tables.fromlist(blocks)
        return PoolSnapshot(
            references=self._pool.all_references(),
            kept=self._pool.all_kept(),
            pinned=int32(self.prefixes.blocks()),
            table_lens=lens,
            tables=tables,
        )

    def num_tokens_kept_by_others(self, group: SequenceGroup) -> int:
        """See `BlockManager`; blocks are shared with other groups only through the prefix cache."""
        if not group.request.sampling.may_read_cache:
            return 0
        held = (self._tables.get(sequence.sequence_id) for sequence in group.sequences)
        own = Counter(block for table in held if table for block in table.blocks)
        first = self._tables[group.live[0].sequence_id]
        kept = takewhile(lambda block: self._pool.references(block) > own[block], first.blocks)
        return self._block_size * len(list(kept))

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """See `BlockManager.can_swap_out`."""
        return len(self._distinct_blocks(group)) <= self._swap.num_free

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """See `BlockManager.swap_out` (paper, section 4.5); a shared block is copied once."""
        tables, keys = {}, {}
        for sequence in group.live:
            self.mark_computed(sequence)
            blocks = tables[sequence.sequence_id] = self._tables[sequence.sequence_id].blocks
            hashes = self._index.keys(sequence.sequence_id)
            # beyond the full blocks there are some that no prompt can ask for
            for block, key in zip_longest(blocks, hashes):
                if block not in keys:
                    keys[block] = key or self._swap.tag(group.request.request_id)
        return self._swap.store(tables, keys)

    def can_swap_in(self, group: SequenceGroup) -> bool:
        """See `BlockManager.can_swap_in`; nothing is kept free in an empty pool."""
        tables = [
            BlockTable(self._swap.tables[sequence.sequence_id], sequence.num_scheduled)
            for sequence in group.live
        ]
        users = Counter(swap_block for table in tables for swap_block in table.blocks)
        return self._has_room(len(users) + self._num_to_grow(tables, users.__getitem__))

    def swap_in(self, group: SequenceGroup) -> tuple[list[tuple[int, int]], list[Allocation]]:
        """See `BlockManager.swap_in` (paper, section 4.5); any free blocks will do."""
        blocks: dict[int, int] = {}
        allocations = []
        for sequence in group.live:
            swap_blocks = self._swap.tables[sequence.sequence_id]
            for swap_block in swap_blocks:
                if swap_block in blocks:
                    # a sequence before it has brought it back: shared as before
                    self._pool.share(blocks[swap_block])
                else:
                    blocks[swap_block] = self._pool.allocate()
            held = [blocks[swap_block] for swap_block in swap_blocks]
            table = self._tables[sequence.sequence_id] = self._returned(sequence, held)
            self._index.enter(group, sequence, 0)
            self._fill(table, sequence.num_scheduled)
            allocations.append(_allocation(sequence, table, sequence.num_scheduled))
        self._swap.read(blocks)
        self._swap.discard(group.sequences)
        return list(blocks.items()), allocations

    def discard(self, group: SequenceGroup) -> None:
        """See `BlockManager.discard`."""
        self._swap.discard([s for s in group.sequences if s.finish_reason is not UNFINISHED])

    def swap_keys(self, swap_blocks: Iterable[int]) -> bytes:
        """See `BlockManager.swap_keys`."""
        return self._swap.keys(swap_blocks)

    def finish_plan(self) -> list[tuple[int, int]]:
        """See `BlockManager.finish_plan`."""
        return self._second_level.finish_plan()

    def spoil(self, blocks: set[int]) -> set[int]:
        """See `BlockManager.spoil`."""
        sequence_ids = spread(blocks, self._tables)
        for block in blocks:
            self._index.forget(block)
        return sequence_ids

    def spoil_swapped(self, swap_blocks: Iterable[int]) -> None:
        """See `BlockManager.spoil_swapped`."""
        self._swap.spoil(swap_blocks)

    def give_up(self, group: SequenceGroup) -> None:
        """See `BlockManager.give_up`."""
        self._swap.discard(group.sequences)

    def _evict(self, block: int) -> None:
        """Let the cache forget a block that the pool hands out; its key is known until then."""
        self._second_level.save_evicted(block)
        self._cache.forget(block)

    def _has_room(self, num_blocks: int) -> bool:
        """Whether a group that enters can have so many blocks, and the headroom stays free.

        What prompts in the pool have still to get is not for others: a prompt that came later would
        be preempted for it.
        """
        num_kept_free = self._num_kept_free(len(self._tables))
        num_owed = self._num_owed(self._growing)
        return num_blocks + num_kept_free + num_owed <= self._pool.num_free

    def _first_end(self, group: SequenceGroup, sequence: Sequence, num_found: int) -> int:
        """Tokens for which a sequence that enters behind found blocks gets blocks at once."""
        if len(group.live) > 1:
            # others begin with its blocks
            return sequence.num_known
        num_tokens = num_found // self._width * self._block_size + self._headroom.most_at_once
        return min(sequence.num_known, num_tokens)

    def _allocate(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        prefix: list[int],
        swapped: Collection[int] = (),
    ) -> Allocation:
        """Make a block table that begins with the shared blocks of a prefix, then swapped ones."""
        for block in prefix:
            self._pool.share(block)
        end = self._first_end(group, sequence, len(prefix) + len(swapped))
        num_new = self._num_blocks(end) - len(prefix)
        table = BlockTable(prefix + [self._pool.allocate() for _ in range(num_new)])
        self._tables[sequence.sequence_id] = table
        if end < sequence.num_known:
            self._growing[sequence.sequence_id] = sequence.num_known
        self._index.enter(group, sequence, len(prefix))
        self._fill(table, end)
        restored = table.blocks[: len(prefix) + len(swapped)]
        self._index.mark_restored(sequence, restored)
        swap_ins = tuple(zip(swapped, restored[len(prefix) :], strict=True))
        allocation = _allocation(sequence, table, len(restored) * self._block_size)
        if not swap_ins:
            return allocation
        num_restored = len(swap_ins) * self._block_size
        return replace(allocation, num_restored=num_restored, swap_ins=swap_ins)

    def _returned(self, sequence: Sequence, blocks: list[int]) -> BlockTable:
        """The table of a sequence whose swapped blocks are in the pool again, still without tokens.

        Args:
            blocks: in the order in which they were swapped out.
        """
        return BlockTable(blocks)

    def _num_shared_blocks(self, sequence: Sequence) -> int:
        """Full blocks of the prompt, but that a token is left to compute."""
        num_full = min(len(sequence.prompt), sequence.num_known - 1) // self._block_size
        return num_full * self._width


def _allocation(sequence: Sequence, table: BlockTable, num_cached: int) -> Allocation:
    return Allocation(sequence, BlockTableUpdate(tuple(enumerate(table.blocks))), num_cached)
