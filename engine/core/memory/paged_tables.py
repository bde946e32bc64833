"""Block tables that grow on demand and share blocks (paper, sections 4.3 and 4.4)."""

from array import array
from collections.abc import Callable, Iterable
from itertools import takewhile

from engine.core.memory.block_manager import NO_UPDATE, BlockTableUpdate
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.block_table import (
    BlockTable,
    num_common_blocks,
    num_new_blocks,
)
from engine.core.memory.headroom import Headroom
from engine.core.memory.prefix_index import NoPrefixIndex, PrefixIndex
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.integers import div_ceil
from engine.types import MemoryUsage

NO_TABLE = BlockTable([])


class PagedTables:
    """The block tables of the sequences in a pool, and what their blocks hold.

    A sequence gets a block when its first token needs one; any free block will do. Sequences share
    blocks until one of them writes into a shared one, which it then copies.
    """

    # blocks for each full block of tokens
    _width = 1

    def __init__(self, pool: BlockPool, block_size: int, headroom: Headroom) -> None:
        """Args: headroom: see `Headroom`; prompts in the pool leave it free for others."""
        self._pool = pool
        self._index: PrefixIndex | NoPrefixIndex = NoPrefixIndex()
        self._block_size = block_size
        self._headroom = headroom
        self._tables: dict[int, BlockTable] = {}
        # known tokens of sequences whose tables do not hold all of them yet, earlier ones first
        self._growing: dict[int, int] = {}
        # tokens in each block in use, their sum, and that of the lengths of all tables
        self._filled = array("i", bytes(4 * pool.num_blocks))
        self._num_filled = 0
        self._num_logical = 0

    def num_extendable(self, sequence: Sequence, count: int) -> int:
        """See `BlockManager.num_extendable`; what others may grow into stays free, see `Headroom`.

        So does what earlier prompts have still to get. A prompt that is the only sequence in the
        pool may have all of it.
        """
        table = self._tables[sequence.sequence_id]
        if sequence.num_scheduled + count <= table.length:
            return count
        earlier = takewhile(lambda key: key != sequence.sequence_id, self._growing)
        num_left = self._pool.num_free - self._num_kept_free(len(self._tables) - 1)
        num_left -= self._num_owed(earlier)
        num_logical = (len(table.blocks) + max(num_left, 0)) // self._width
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
        # none needs more than one logical block, so there is seldom a need to look closer
        if len(sequence_ids) * self._width <= self._pool.num_free:
            return True
        tables = [self._tables[sequence_id] for sequence_id in sequence_ids]
        return self._num_to_grow(tables, self._pool.references) <= self._pool.num_free

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
        child = self._tables.get(child_id, NO_TABLE)
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
        table = self._tables.get(sequence.sequence_id, NO_TABLE)
        self._index.mark_computed(sequence, table.blocks)

    def free(self, sequence_id: int) -> None:
        """See `BlockManager.free`; heads of prefixes come last, so that they are evicted last."""
        table = self._tables.pop(sequence_id, NO_TABLE)
        self._growing.pop(sequence_id, None)
        self._num_logical -= table.length
        self._release(table.blocks)
        self._index.leave(sequence_id)

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """See `BlockManager.block_table`."""
        return tuple(self._tables[sequence_id].blocks)

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """See `BlockManager.num_distinct_blocks`."""
        return len(self._distinct_blocks(group))

    def _usage(self, num_swapped: int) -> MemoryUsage:
        """See `BlockManager.usage`; `num_swapped` blocks of the swap space are in use."""
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
            swapped=num_swapped * size,
            num_evicted=self._pool.num_evicted,
        )

    def _num_kept_free(self, num_sequences: int) -> int:
        num_tables = num_sequences * self._width
        return self._headroom.num_kept_free(self._pool.num_blocks, num_tables)

    def _num_owed(self, sequence_ids: Iterable[int]) -> int:
        """Blocks that prompts have still to get."""
        return sum(self._num_missing(self._tables[i], self._growing[i]) for i in sequence_ids)

    def _num_missing(self, table: BlockTable, end: int) -> int:
        """Blocks that a table has still to get for so many tokens."""
        return self._num_blocks(end) - len(table.blocks)

    def _num_to_grow(self, tables: list[BlockTable], num_users: Callable[[int], int]) -> int:
        """See `num_new_blocks`."""
        return num_new_blocks(tables, self._block_size, num_users)

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
