"""The paged block manager: block tables grow on demand and share blocks (paper, section 4)."""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import takewhile, zip_longest

from engine.core.memory.block_manager import NO_UPDATE, Allocation, BlockTableUpdate
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_table import BlockTable, num_common_blocks, num_new_blocks, spread
from engine.core.memory.headroom import NO_HEADROOM, Headroom
from engine.core.memory.pinned_prefixes import (
    NO_PINS,
    NoPinnedPrefixes,
    PinLimits,
    PinnedPrefixes,
)
from engine.core.memory.prefix_cache import PrefixCache
from engine.core.memory.prefix_index import NoPrefixIndex, PrefixIndex
from engine.core.memory.prefix_marks import NoPrefixMarks, PrefixMarks
from engine.core.memory.second_level import SecondLevel
from engine.core.memory.swap_space import SwapSpace
from engine.core.sequence import UNFINISHED, Sequence
from engine.core.sequence_group import SequenceGroup
from engine.integers import div_ceil
from engine.types import IntColumn, MemoryUsage, PoolSnapshot, int32

_NO_TABLE = BlockTable([])


class PagedBlockManager:
    """Gives a sequence a block when its first token needs one; any free block will do.

    Sequences share blocks until one of them writes into a shared one, which it then copies. A part
    of the pool is kept free when a group enters (see `Headroom`), so that running ones can grow for
    a while before one of them must be preempted.
    """

    # blocks for each full block of tokens
    _width = 1

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
        self._index: PrefixIndex | NoPrefixIndex = NoPrefixIndex()
        self.prefixes: PinnedPrefixes | NoPinnedPrefixes = NoPinnedPrefixes()
        self.marks: PrefixMarks | NoPrefixMarks = NoPrefixMarks()
        if prefix_cache:
            cache = PrefixCache(block_size)
            self.marks = cache.marks
            self._pool = BlockPool(num_blocks, on_evict=self._evict)
            self._cache = cache
            self._index = PrefixIndex(self._pool, cache, block_size)
            self.prefixes = PinnedPrefixes(self._pool, cache, block_size, pins)
        else:
            self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._headroom = headroom
        self._tables: dict[int, BlockTable] = {}
        # known tokens of sequences whose tables do not hold all of them yet
        self._growing: dict[int, int] = {}
        self._swap = SwapSpace(num_swap_blocks, most_swapped=num_blocks)
        self._second_level = SecondLevel(self._pool, self._index, self._swap)
        # tokens in each block in use, their sum, and that of the lengths of all tables
        self._filled = array("i", bytes(4 * num_blocks))
        self._num_filled = 0
        self._num_logical = 0

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

    def num_extendable(self, sequence: Sequence, count: int) -> int:
        """See `BlockManager.num_extendable`; what others may grow into stays free, see `Headroom`.

        A prompt that is the only sequence in the pool may have all of it.
        """
        table = self._tables[sequence.sequence_id]
        if sequence.num_scheduled + count <= table.length:
            return count
        num_left = max(self._pool.num_free - self._num_kept_free(len(self._tables) - 1), 0)
        num_logical = (len(table.blocks) + num_left) // self._width
        return min(count, num_logical * self._block_size - sequence.num_scheduled)

    def extend(self, sequence: Sequence, count: int) -> BlockTableUpdate:
        """See `BlockManager.extend`: blocks on demand, as for a decode, but for a whole chunk."""
        table = self._tables[sequence.sequence_id]
        end = sequence.num_scheduled + count
        if end <= table.length:
            return NO_UPDATE
        first = len(table.blocks)
        num_new = self._num_blocks(end) - first
        table.blocks += [self._pool.allocate() for _ in range(num_new)]
        self._fill(table, end - table.length)
        if end == sequence.prefill_end:
            del self._growing[sequence.sequence_id]
        return BlockTableUpdate(tuple(enumerate(table.blocks[first:], first)))

    def can_append(self, sequence_ids: list[int]) -> bool:
        """See `BlockManager.can_append`."""
        # none needs more than one block, so there is seldom a need to look closer
        if len(sequence_ids) <= self._pool.num_free:
            return True
        tables = [self._tables[sequence_id] for sequence_id in sequence_ids]
        num_new = num_new_blocks(tables, self._block_size, self._pool.references)
        return num_new <= self._pool.num_free

    def append(self, sequence_id: int) -> BlockTableUpdate:
        """See `BlockManager.append` (paper, section 4.3; copy-on-write: section 4.4)."""
        table = self._tables[sequence_id]
        blocks, update = table.blocks, NO_UPDATE
        index, offset = divmod(table.length, self._block_size)
        if index == len(blocks):
            # all blocks are full: a new logical block is mapped to any free physical one
            blocks.append(self._pool.allocate())
            update = BlockTableUpdate(new_blocks=((index, blocks[index]),))
        elif offset and self._pool.references(blocks[index]) > 1:
            # the last block is half full and shared: the sequence goes on in a copy of its own, and
            # the last of those that shared it writes into the original
            copy = self._copy_last(table)
            update = BlockTableUpdate(new_blocks=((index, copy[1]),), copies=(copy,))
        # else the last block is its own and has room for the token
        block = blocks[index]
        # `_fill_block`, without the call: most tokens of a server come by here
        if self._filled[block] <= offset:
            self._num_filled += offset + 1 - self._filled[block]
            self._filled[block] = offset + 1
        table.length += 1
        self._num_logical += 1
        return update

    def fork(self, parent_id: int, child_id: int) -> BlockTableUpdate:
        """See `BlockManager.fork`; the child shares all blocks of the parent (section 4.4).

        A beam that is forked into had blocks of its own, which it gives up. Nothing is copied here,
        but by `append`, when one of the two writes into a block that both have.
        """
        parent = self._tables[parent_id]
        child = self._tables.get(child_id, _NO_TABLE)
        # beams mostly differ in their last blocks only, and what they share is left as it is
        num_common = num_common_blocks(parent.blocks, child.blocks)
        for block in parent.blocks[num_common:]:
            self._pool.share(block)
        self._release(child.blocks[num_common:])
        self._tables[child_id] = BlockTable(list(parent.blocks), parent.length)
        self._index.fork(parent_id, child_id)
        self._num_logical += parent.length - child.length
        return NO_UPDATE

    def mark_computed(self, sequence: Sequence) -> None:
        """See `BlockManager.mark_computed`; only full blocks can be found."""
        table = self._tables.get(sequence.sequence_id, _NO_TABLE)
        self._index.mark_computed(sequence, table.blocks)

    def free(self, sequence_id: int) -> None:
        """See `BlockManager.free`; heads of prefixes come last, so that they are evicted last."""
        table = self._tables.pop(sequence_id, _NO_TABLE)
        self._growing.pop(sequence_id, None)
        self._num_logical -= table.length
        self._release(table.blocks)
        self._index.leave(sequence_id)

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """See `BlockManager.block_table`."""
        return tuple(self._tables[sequence_id].blocks)

    def usage(self) -> MemoryUsage:
        """See `BlockManager.usage`."""
        size = self._block_size
        total = self._pool.num_blocks * size
        cached = self._pool.num_unused_kept * size
        free = self._pool.num_free * size - cached
        pinned = self._pool.num_unused_pinned * size
        internal = total - free - cached - pinned - self._num_filled
        return MemoryUsage(
            total=total,
            filled=self._num_filled,
            internal=internal,
            cached=cached,
            pinned=pinned,
            free=free,
            shared_saving=self._num_logical - self._num_filled,
            swapped=self._swap.num_used * size,
            num_evicted=self._pool.num_evicted,
        )

    def snapshot(self, sequence_ids: Iterable[int]) -> PoolSnapshot:
        """See `BlockManager.snapshot`."""
        lens, tables = int32(), int32()
        for sequence_id in sequence_ids:
            blocks = self._tables.get(sequence_id, _NO_TABLE).blocks
            lens.append(len(blocks))
            tables.fromlist(blocks)
        return PoolSnapshot(
            references=self._pool.all_references(),
            kept=self._pool.all_kept(),
            pinned=int32(self.prefixes.blocks()),
            table_lens=lens,
            tables=tables,
        )

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """See `BlockManager.num_distinct_blocks`."""
        return len(self._distinct_blocks(group))

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
        num_new = num_new_blocks(tables, self._block_size, users.__getitem__)
        return self._has_room(len(users) + num_new)

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
            table = BlockTable([blocks[swap_block] for swap_block in swap_blocks])
            self._tables[sequence.sequence_id] = table
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
        num_owed = sum(self._num_owed(self._tables[key], end) for key, end in self._growing.items())
        return num_blocks + num_kept_free + num_owed <= self._pool.num_free

    def _num_kept_free(self, num_sequences: int) -> int:
        num_tables = num_sequences * self._width
        return self._headroom.num_kept_free(self._pool.num_blocks, num_tables)

    def _num_owed(self, table: BlockTable, end: int) -> int:
        """Blocks that a table has still to get for the known tokens of its sequence."""
        return self._num_blocks(end) - len(table.blocks)

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

    def _num_shared_blocks(self, sequence: Sequence) -> int:
        """Full blocks of the prompt, but that a token is left to compute."""
        num_full = min(len(sequence.prompt), sequence.num_known - 1) // self._block_size
        return num_full * self._width

    def _distinct_blocks(self, group: SequenceGroup) -> list[int]:
        tables = (self._tables[sequence.sequence_id] for sequence in group.live)
        return list(dict.fromkeys(block for table in tables for block in table.blocks))

    def _release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            if self._pool.release(block):
                self._num_filled -= self._filled[block]
                self._filled[block] = 0

    def _copy_last(self, table: BlockTable) -> tuple[int, int]:
        source, copy = table.blocks[-1], self._pool.allocate()
        self._pool.release(source)
        table.blocks[-1] = copy
        self._filled[copy] = table.length % self._block_size
        self._num_filled += self._filled[copy]
        return source, copy

    def _fill(self, table: BlockTable, num_tokens: int) -> None:
        """Count positions [length, length + num_tokens), those of shared blocks once."""
        end = table.length + num_tokens
        for index in range(table.length // self._block_size, self._num_blocks(end)):
            block = table.blocks[index]
            self._fill_block(block, min(end - index * self._block_size, self._block_size))
        table.length = end
        self._num_logical += num_tokens

    def _fill_block(self, block: int, num_tokens: int) -> None:
        num_new = num_tokens - self._filled[block]
        if num_new > 0:
            self._filled[block] = num_tokens
            self._num_filled += num_new

    def _num_blocks(self, num_tokens: int) -> int:
        return div_ceil(num_tokens, self._block_size) * self._width


def _allocation(sequence: Sequence, table: BlockTable, num_cached: int) -> Allocation:
    return Allocation(sequence, BlockTableUpdate(tuple(enumerate(table.blocks))), num_cached)
