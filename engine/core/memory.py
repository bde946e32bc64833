"""Paged KV memory: block tables that grow on demand (paper, sections 4.2 and 4.3)."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from engine.core.block_pool import BlockPool
from engine.types import MemoryUsage


class Admission(Enum):
    """Whether a sequence may enter the pool."""

    NOW = auto()
    LATER = auto()
    NEVER = auto()


class Memory(Protocol):
    """A policy for the KV pool.

    Questions (`can_x`) have no effect; commands may assume that they were asked.
    """

    def can_admit(self, num_tokens: int, max_positions: int) -> Admission:
        """Whether a new sequence fits.

        Args:
            num_tokens: tokens that it starts with.
            max_positions: positions that it may grow to.
        """
        ...

    def can_append(self, sequence_id: int, num_tokens: int) -> bool:
        """Whether a sequence can grow by `num_tokens`."""
        ...

    def append(self, sequence_id: int, num_tokens: int) -> list[tuple[int, int]]:
        """Grow a sequence, a new one from nothing.

        Returns:
            Its new (table index, block) pairs.
        """
        ...

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """Blocks of a sequence in order."""
        ...

    def free(self, sequence_id: int) -> None:
        """Give back all that a sequence holds."""
        ...

    def usage(self) -> MemoryUsage:
        """Slots by use."""
        ...


@dataclass(eq=False, slots=True)
class _Table:
    """Attributes: room: slots of the last block that are not filled."""

    blocks: list[int] = field(default_factory=list)
    room: int = 0


class PagedMemory:
    """Blocks are allocated when the first token that needs them arrives, and are never contiguous.

    A share of the pool, the watermark, is kept free of new sequences so that running ones can grow
    for a while before one of them must be preempted.
    """

    def __init__(self, num_blocks: int, block_size: int, *, watermark: float = 0.01) -> None:
        self._pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._watermark_blocks = int(num_blocks * watermark)
        self._tables: dict[int, _Table] = {}
        self._num_filled = 0

    def can_admit(self, num_tokens: int, max_positions: int) -> Admission:
        """See `Memory.can_admit`; the watermark does not apply to an empty pool."""
        if self._num_blocks(max_positions) > self._pool.num_blocks:
            return Admission.NEVER
        reserve = self._watermark_blocks if self._tables else 0
        fits = self._num_blocks(num_tokens) + reserve <= self._pool.num_free
        return Admission.NOW if fits else Admission.LATER

    def can_append(self, sequence_id: int, num_tokens: int) -> bool:
        """See `Memory.can_append`."""
        table = self._tables.get(sequence_id)
        missing = num_tokens - table.room if table else num_tokens
        return missing <= 0 or self._num_blocks(missing) <= self._pool.num_free

    def append(self, sequence_id: int, num_tokens: int) -> list[tuple[int, int]]:
        """See `Memory.append`."""
        self._num_filled += num_tokens
        table = self._tables.get(sequence_id)
        if table is None:
            table = self._tables[sequence_id] = _Table()
        table.room -= num_tokens
        # most tokens find room in the last block
        return self._allocate(table) if table.room < 0 else []

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """See `Memory.block_table`."""
        return tuple(self._tables[sequence_id].blocks)

    def free(self, sequence_id: int) -> None:
        """See `Memory.free`; later blocks first, so that the next sequence gets them in order."""
        table = self._tables.pop(sequence_id)
        for block in reversed(table.blocks):
            self._pool.release(block)
        self._num_filled -= len(table.blocks) * self._block_size - table.room

    def usage(self) -> MemoryUsage:
        """See `Memory.usage`."""
        total = self._pool.num_blocks * self._block_size
        free = self._pool.num_free * self._block_size
        filled = self._num_filled
        return MemoryUsage(total=total, filled=filled, internal=total - free - filled, free=free)

    def _allocate(self, table: _Table) -> list[tuple[int, int]]:
        start = len(table.blocks)
        while table.room < 0:
            table.blocks.append(self._pool.allocate())
            table.room += self._block_size
        return list(enumerate(table.blocks[start:], start))

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
