"""Paged KV memory: block tables that grow on demand and share blocks (paper, section 4)."""

from array import array
from collections import Counter
from itertools import takewhile

from engine.core.block_pool import BlockPool
from engine.core.block_table import BlockTable, num_common_blocks, num_new_blocks
from engine.core.headroom import NO_HEADROOM, Headroom
from engine.core.memory import NO_GROWTH, Admitted, Growth
from engine.core.pinned_prefixes import PinnedPrefixes
from engine.core.prefix_cache import PrefixCache
from engine.core.prefix_index import PrefixIndex
from engine.core.sequence import UNFINISHED, Sequence, SequenceGroup
from engine.core.swap_space import SwapSpace
from engine.types import MemoryUsage

_NO_TABLE = BlockTable([])


class PagedMemory:
    """Blocks are allocated when the first token that needs them arrives, and are never contiguous.

    Sequences share blocks until one of them writes into a shared one, which it then copies. A share
    of the pool, at least the watermark, is kept free of new sequences so that running ones can grow
    for a while before one of them must be preempted.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_swap_slots: int = 0,
        headroom: Headroom = NO_HEADROOM,
        prefix_cache: bool = True,
        pinned_blocks: int = 0,
    ) -> None:
        """Make an empty pool.

        Args:
            num_blocks: blocks of the pool.
            block_size: tokens per block.
            num_swap_slots: blocks that fit the swap space.
            headroom: what newcomers leave free.
            prefix_cache: whether full blocks are kept for later prompts.
            pinned_blocks: blocks that pinned prefixes may hold; no request may need them.
        """
        cache = PrefixCache() if prefix_cache else None
        self._pool = BlockPool(num_blocks, cache.forget if cache else None)
        self._index = PrefixIndex(self._pool, cache, block_size)
        self.prefixes: PinnedPrefixes | None = None
        if cache:
            self.prefixes = PinnedPrefixes(
                self._pool, cache, block_size, budget_blocks=pinned_blocks
            )
        self._block_size = block_size
        self._headroom = headroom
        self._tables: dict[int, BlockTable] = {}
        self._swap = SwapSpace(num_swap_slots)
        # tokens in each block in use, their sum, and that of the lengths of all tables
        self._filled = array("i", bytes(4 * num_blocks))
        self._num_filled = 0
        self._num_logical = 0

    def can_admit(self, group: SequenceGroup) -> bool:
        """See `Memory.can_admit`; the watermark does not apply to an empty pool."""
        first, *others = group.live
        hits = self._index.match(group, first)
        num_blocks = self._num_blocks(first.num_known) - len(hits)
        num_shared = self._num_shared_blocks(group)
        num_blocks += sum(self._num_blocks(other.num_known) - num_shared for other in others)
        # a hit that nobody uses is taken out of the blocks that count as free, unless it is pinned
        num_blocks += sum(self._pool.is_free(block) for block in hits)
        return self._has_room(num_blocks)

    def admit(self, group: SequenceGroup) -> list[Admitted]:
        """See `Memory.admit`.

        The first sequence takes what the prefix cache has; the others, if the group was recomputed
        after it had forked, share the full blocks of the prompt with the first.
        """
        first, *others = group.live
        admitted = [self._admit(group, first, self._index.match(group, first))]
        prefix = self._tables[first.sequence_id].blocks[: self._num_shared_blocks(group)]
        return admitted + [self._admit(group, other, prefix) for other in others]

    def can_append(self, sequence_ids: list[int]) -> bool:
        """See `Memory.can_append`."""
        # none needs more than one block, so there is seldom a need to look closer
        if len(sequence_ids) <= self._pool.num_free:
            return True
        tables = [self._tables[sequence_id] for sequence_id in sequence_ids]
        num_new = num_new_blocks(tables, self._block_size, self._pool.references)
        return num_new <= self._pool.num_free

    def append(self, sequence_id: int) -> Growth:
        """See `Memory.append`; a shared last block is copied first (paper, section 4.4)."""
        table = self._tables[sequence_id]
        blocks, growth = table.blocks, NO_GROWTH
        index, offset = divmod(table.length, self._block_size)
        if index == len(blocks):
            blocks.append(self._pool.allocate())
            growth = Growth(entries=((index, blocks[index]),))
        elif offset and self._pool.references(blocks[index]) > 1:
            copy = self._copy_last(table)
            growth = Growth(entries=((index, copy[1]),), copies=(copy,))
        block = blocks[index]
        # `_fill_block`, without the call: most tokens of a server come by here
        if self._filled[block] <= offset:
            self._num_filled += offset + 1 - self._filled[block]
            self._filled[block] = offset + 1
        table.length += 1
        self._num_logical += 1
        return growth

    def fork(self, parent_id: int, child_id: int) -> Growth:
        """See `Memory.fork`; the child shares all blocks and gives back what it held before."""
        parent = self._tables[parent_id]
        child = self._tables.get(child_id, _NO_TABLE)
        # beams differ in their last blocks alone
        num_common = num_common_blocks(parent.blocks, child.blocks)
        for block in parent.blocks[num_common:]:
            self._pool.share(block)
        self._release(child.blocks[num_common:])
        self._tables[child_id] = BlockTable(list(parent.blocks), parent.length)
        self._index.fork(parent_id, child_id)
        self._num_logical += parent.length - child.length
        return NO_GROWTH

    def commit(self, sequence: Sequence) -> None:
        """See `Memory.commit`; full blocks can be found by later sequences from now on."""
        table = self._tables.get(sequence.sequence_id, _NO_TABLE)
        self._index.commit(sequence, table.blocks)

    def free(self, sequence_id: int) -> None:
        """See `Memory.free`; later blocks first, so that the heads of prefixes are evicted last."""
        table = self._tables.pop(sequence_id, _NO_TABLE)
        self._num_logical -= table.length
        self._release(table.blocks)
        self._index.leave(sequence_id)

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """See `Memory.block_table`."""
        return tuple(self._tables[sequence_id].blocks)

    def usage(self) -> MemoryUsage:
        """See `Memory.usage`."""
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
        )

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """See `Memory.num_distinct_blocks`."""
        return len(self._distinct_blocks(group))

    def num_kept_tokens(self, group: SequenceGroup) -> int:
        """See `Memory.num_kept_tokens`; blocks are shared with others only through the cache."""
        if not group.request.sampling.may_read_cache:
            return 0
        held = (self._tables.get(sequence.sequence_id) for sequence in group.sequences)
        own = Counter(block for table in held if table for block in table.blocks)
        first = self._tables[group.live[0].sequence_id]
        kept = takewhile(lambda block: self._pool.references(block) > own[block], first.blocks)
        return self._block_size * len(list(kept))

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """See `Memory.can_swap_out`."""
        return len(self._distinct_blocks(group)) <= self._swap.num_free

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """See `Memory.swap_out`."""
        slots = self._swap.store(self._distinct_blocks(group))
        for sequence in group.live:
            table = self._tables[sequence.sequence_id]
            self._swap.tables[sequence.sequence_id] = [slots[block] for block in table.blocks]
        return list(slots.items())

    def can_swap_in(self, group: SequenceGroup) -> bool:
        """See `Memory.can_swap_in`; the watermark does not apply to an empty pool."""
        tables = [
            BlockTable(self._swap.tables[sequence.sequence_id], sequence.num_scheduled)
            for sequence in group.live
        ]
        users = Counter(slot for table in tables for slot in table.blocks)
        num_new = num_new_blocks(tables, self._block_size, users.__getitem__)
        return self._has_room(len(users) + num_new)

    def swap_in(self, group: SequenceGroup) -> tuple[list[tuple[int, int]], list[Admitted]]:
        """See `Memory.swap_in`."""
        blocks: dict[int, int] = {}
        admitted = []
        for sequence in group.live:
            slots = self._swap.tables[sequence.sequence_id]
            for slot in slots:
                if slot in blocks:
                    self._pool.share(blocks[slot])
                else:
                    blocks[slot] = self._pool.allocate()
            table = BlockTable([blocks[slot] for slot in slots])
            self._tables[sequence.sequence_id] = table
            self._index.enter(group, sequence, 0)
            self._fill(table, sequence.num_scheduled)
            admitted.append(_admitted(sequence, table, sequence.num_scheduled))
        self._swap.discard(group.sequences)
        return list(blocks.items()), admitted

    def discard(self, group: SequenceGroup) -> None:
        """See `Memory.discard`."""
        self._swap.discard([s for s in group.sequences if s.finish_reason is not UNFINISHED])

    def _has_room(self, num_blocks: int) -> bool:
        """Whether newcomers can have blocks; nothing is kept free in an empty pool."""
        num_kept_free = self._headroom.num_kept_free(self._pool.num_blocks, len(self._tables))
        return num_blocks + num_kept_free <= self._pool.num_free

    def _admit(self, group: SequenceGroup, sequence: Sequence, prefix: list[int]) -> Admitted:
        for block in prefix:
            self._pool.share(block)
        num_new = self._num_blocks(sequence.num_known) - len(prefix)
        table = BlockTable(prefix + [self._pool.allocate() for _ in range(num_new)])
        self._tables[sequence.sequence_id] = table
        self._index.enter(group, sequence, len(prefix))
        self._fill(table, sequence.num_known)
        return _admitted(sequence, table, len(prefix) * self._block_size)

    def _num_shared_blocks(self, group: SequenceGroup) -> int:
        return len(group.request.prompt) // self._block_size

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
        return -(-num_tokens // self._block_size)


def _admitted(sequence: Sequence, table: BlockTable, num_cached: int) -> Admitted:
    return Admitted(sequence, Growth(tuple(enumerate(table.blocks))), num_cached)
