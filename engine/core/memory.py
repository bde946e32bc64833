"""Paged KV memory: block tables that grow on demand and share blocks (paper, section 4)."""

from array import array
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from engine.core.block_pool import BlockPool
from engine.core.limits import blocks_needed
from engine.core.prefix_cache import PrefixCache
from engine.core.sequence import Sequence, SequenceGroup
from engine.core.swap_space import SwapSpace
from engine.types import MemoryUsage


class Admission(Enum):
    """Whether a sequence may enter the pool."""

    NOW = auto()
    LATER = auto()
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class Growth:
    """What changed in a block table.

    Attributes:
        entries: (table index, block) pairs that are new.
        copies: (source, destination) blocks to copy before the new tokens are written.
    """

    entries: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


NO_GROWTH = Growth()


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a sequence got on entering the pool.

    Attributes:
        growth: its block table.
        num_cached: leading tokens whose keys and values are there already, or will be once the
            first sequence of the group has been prefilled that far.
    """

    sequence: Sequence
    growth: Growth
    num_cached: int


class Memory(Protocol):
    """A policy for the KV pool.

    Questions (`can_x`) have no effect; commands may assume that they were asked.
    """

    def can_admit(self, group: SequenceGroup) -> Admission:
        """Whether all live sequences of a group fit with the tokens that are known."""
        ...

    def admit(self, group: SequenceGroup) -> list[Admitted]:
        """Give every live sequence of a group blocks for its known tokens."""
        ...

    def can_append(self, sequence_ids: list[int]) -> bool:
        """Whether each of these sequences can grow by one token."""
        ...

    def append(self, sequence_id: int) -> Growth:
        """Grow a sequence by one token."""
        ...

    def fork(self, parent_id: int, child_id: int) -> None:
        """Make the child a duplicate of the parent; it gives back what it held before."""
        ...

    def commit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Note that plans up to the last fill positions [0, num_scheduled) with known tokens."""
        ...

    def free(self, sequence_id: int) -> None:
        """Give back all that a sequence holds; a no-op for one that holds nothing."""
        ...

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """Blocks of a sequence in order."""
        ...

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """Blocks that a group holds, shared ones once."""
        ...

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Whether the swap space has room for all blocks of a group."""
        ...

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """Copy a group to the swap space; its blocks stay its own until they are freed.

        Returns:
            (block, swap slot) pairs, shared blocks once.
        """
        ...

    def can_swap_in(self, group: SequenceGroup) -> bool:
        """Whether the pool has room for a swapped group and one more token of each sequence."""
        ...

    def swap_in(self, group: SequenceGroup) -> tuple[list[tuple[int, int]], list[Admitted]]:
        """Bring a group back.

        Returns:
            (swap slot, block) pairs, and the block table of each live sequence.
        """
        ...

    def discard(self, group: SequenceGroup) -> None:
        """Give back the swap space of a group."""
        ...

    def usage(self) -> MemoryUsage:
        """Slots by use."""
        ...


@dataclass(slots=True)
class _Table:
    blocks: list[int]
    length: int


class PagedMemory:
    """Blocks are allocated when the first token that needs them arrives, and are never contiguous.

    Sequences share blocks until one of them writes into a shared one, which it then copies. A share
    of the pool, the watermark, is kept free of new sequences so that running ones can grow for a
    while before one of them must be preempted.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_swap_slots: int = 0,
        watermark: float = 0.01,
        prefix_cache: bool = True,
    ) -> None:
        self._cache = PrefixCache(block_size) if prefix_cache else None
        self._pool = BlockPool(num_blocks, self._cache.forget if self._cache else None)
        self._block_size = block_size
        self._watermark_blocks = int(num_blocks * watermark)
        self._tables: dict[int, _Table] = {}
        self._swap = SwapSpace(num_swap_slots)
        # tokens in each block in use, and their sum
        self._filled = array("i", bytes(4 * num_blocks))
        self._num_filled = 0

    def can_admit(self, group: SequenceGroup) -> Admission:
        """See `Memory.can_admit`; the watermark does not apply to an empty pool."""
        most = blocks_needed(
            len(group.request.prompt), group.max_tokens, group.num_sequences, self._block_size
        )
        if most > self._pool.num_blocks:
            return Admission.NEVER
        first, *others = group.live
        hits = self._match(group, first)
        num_blocks = self._num_blocks(first.num_known) - len(hits)
        num_shared = self._num_shared_blocks(group)
        num_blocks += sum(self._num_blocks(other.num_known) - num_shared for other in others)
        # a hit without a reference is taken out of the blocks that count as free
        num_blocks += sum(self._pool.references(block) == 0 for block in hits)
        reserve = self._watermark_blocks if self._tables else 0
        fits = num_blocks + reserve <= self._pool.num_free
        return Admission.NOW if fits else Admission.LATER

    def admit(self, group: SequenceGroup) -> list[Admitted]:
        """See `Memory.admit`.

        The first sequence takes what the prefix cache has; the others, if the group was recomputed
        after it had forked, share the full blocks of the prompt with the first.
        """
        first, *others = group.live
        prefix = self._match(group, first)
        admitted = [self._admit(first, prefix)]
        if others:
            prefix = self._tables[first.sequence_id].blocks[: self._num_shared_blocks(group)]
        return admitted + [self._admit(sequence, prefix) for sequence in others]

    def can_append(self, sequence_ids: list[int]) -> bool:
        """See `Memory.can_append`."""
        num_needed = 0
        writers: dict[int, int] = {}
        for sequence_id in sequence_ids:
            table = self._tables[sequence_id]
            if table.length == len(table.blocks) * self._block_size:
                num_needed += 1
            elif self._writes_shared(table):
                block = table.blocks[-1]
                writers[block] = writers.get(block, 0) + 1
                # the last of a block's users writes into the block itself
                num_needed += writers[block] < self._pool.references(block)
        return num_needed <= self._pool.num_free

    def append(self, sequence_id: int) -> Growth:
        """See `Memory.append`; a shared last block is copied first (paper, section 4.4)."""
        table = self._tables[sequence_id]
        growth = NO_GROWTH
        if table.length == len(table.blocks) * self._block_size:
            table.blocks.append(self._pool.allocate())
            growth = Growth(entries=((len(table.blocks) - 1, table.blocks[-1]),))
        elif self._writes_shared(table):
            copy = self._copy_last(table)
            growth = Growth(entries=((len(table.blocks) - 1, copy[1]),), copies=(copy,))
        self._fill(table, 1)
        return growth

    def fork(self, parent_id: int, child_id: int) -> None:
        """See `Memory.fork`."""
        parent = self._tables[parent_id]
        for block in parent.blocks:
            self._pool.share(block)
        self.free(child_id)
        self._tables[child_id] = _Table(list(parent.blocks), parent.length)

    def commit(self, group: SequenceGroup, sequence: Sequence) -> None:
        """See `Memory.commit`; full blocks can be found by later sequences from now on."""
        if self._cache is None:
            return
        num_blocks = min(sequence.num_scheduled, sequence.num_known) // self._block_size
        blocks = self._tables[sequence.sequence_id].blocks[:num_blocks]
        tokens = sequence.known_tokens(0, num_blocks * self._block_size)
        for block in self._cache.insert(group.request.salt, tokens, blocks):
            self._pool.keep(block)

    def free(self, sequence_id: int) -> None:
        """See `Memory.free`; later blocks first, so that the heads of prefixes are evicted last."""
        table = self._tables.pop(sequence_id, None)
        for block in reversed(table.blocks if table else ()):
            if self._pool.release(block):
                self._num_filled -= self._filled[block]
                self._filled[block] = 0

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """See `Memory.block_table`."""
        return tuple(self._tables[sequence_id].blocks)

    def usage(self) -> MemoryUsage:
        """See `Memory.usage`."""
        size = self._block_size
        total = self._pool.num_blocks * size
        cached = self._pool.num_unused_kept * size
        free = self._pool.num_free * size - cached
        internal = total - free - cached - self._num_filled
        logical = sum(table.length for table in self._tables.values())
        return MemoryUsage(
            total=total,
            filled=self._num_filled,
            internal=internal,
            cached=cached,
            free=free,
            shared_saving=logical - self._num_filled,
            swapped=self._swap.num_used * size,
        )

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """See `Memory.num_distinct_blocks`."""
        return len(self._distinct_blocks(group))

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
        reserve = self._watermark_blocks if self._tables else 0
        needed = len(self._swap.distinct_slots(group)) + len(group.live)
        return needed + reserve <= self._pool.num_free

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
            table = _Table([blocks[slot] for slot in slots], 0)
            self._tables[sequence.sequence_id] = table
            self._fill(table, sequence.num_scheduled)
            admitted.append(_admitted(sequence, table, sequence.num_scheduled))
        self.discard(group)
        return list(blocks.items()), admitted

    def discard(self, group: SequenceGroup) -> None:
        """See `Memory.discard`."""
        self._swap.discard(group)

    def _admit(self, sequence: Sequence, prefix: list[int]) -> Admitted:
        for block in prefix:
            self._pool.share(block)
        num_new = self._num_blocks(sequence.num_known) - len(prefix)
        table = _Table(prefix + [self._pool.allocate() for _ in range(num_new)], 0)
        self._tables[sequence.sequence_id] = table
        self._fill(table, sequence.num_known)
        return _admitted(sequence, table, len(prefix) * self._block_size)

    def _match(self, group: SequenceGroup, sequence: Sequence) -> list[int]:
        """Cached blocks of a prefix that leaves at least one token to compute."""
        if self._cache is None or not group.request.sampling.may_read_cache:
            return []
        num_tokens = (sequence.num_known - 1) // self._block_size * self._block_size
        return self._cache.match(group.request.salt, sequence.known_tokens(0, num_tokens))

    def _num_shared_blocks(self, group: SequenceGroup) -> int:
        return len(group.request.prompt) // self._block_size

    def _distinct_blocks(self, group: SequenceGroup) -> list[int]:
        tables = (self._tables[sequence.sequence_id] for sequence in group.live)
        return list(dict.fromkeys(block for table in tables for block in table.blocks))

    def _writes_shared(self, table: _Table) -> bool:
        is_partial = table.length % self._block_size != 0
        return is_partial and self._pool.references(table.blocks[-1]) > 1

    def _copy_last(self, table: _Table) -> tuple[int, int]:
        source, copy = table.blocks[-1], self._pool.allocate()
        self._pool.release(source)
        table.blocks[-1] = copy
        self._filled[copy] = table.length % self._block_size
        self._num_filled += self._filled[copy]
        return source, copy

    def _fill(self, table: _Table, num_tokens: int) -> None:
        """Count positions [length, length + num_tokens), those of shared blocks once."""
        end = table.length + num_tokens
        for index in range(table.length // self._block_size, self._num_blocks(end)):
            block = table.blocks[index]
            filled = min(end - index * self._block_size, self._block_size)
            self._num_filled += max(0, filled - self._filled[block])
            self._filled[block] = max(filled, self._filled[block])
        table.length = end

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def _admitted(sequence: Sequence, table: _Table, num_cached: int) -> Admitted:
    return Admitted(sequence, Growth(tuple(enumerate(table.blocks))), num_cached)
