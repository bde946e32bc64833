"""Contiguous KV memory reserved in advance, as in Orca: the paper's baselines (section 6.1)."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.core.memory.block_manager import NO_UPDATE, Allocation, BlockTableUpdate
from engine.core.memory.pinned_prefixes import NoPinnedPrefixes
from engine.core.memory.prefix_marks import NoPrefixMarks
from engine.core.memory.reserved.buddy import BuddyAllocator, chunk_size
from engine.core.memory.reserved.reservation import OutputEstimate, reserved_slots
from engine.core.scheduling.limits import max_positions
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.integers import div_ceil
from engine.types import MemoryUsage, PoolSnapshot, int32


@dataclass(slots=True)
class _Buffer:
    """Attributes: start: its first block; length: positions filled."""

    start: int
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What every sequence of a group gets.

    Attributes:
        needed: positions that it fills in the end.
        num_slots: positions that are reserved by the estimate.
        num_blocks: blocks for them; its chunk may be larger.
    """

    needed: int
    num_slots: int
    num_blocks: int


@dataclass(slots=True)
class _Reservation:
    """The buffers of one group.

    Attributes:
        held: by sequence id.
        spares: of siblings that are not forked yet, and of ended beams that may be forked into.
    """

    size: _Size
    keeps_spares: bool
    held: dict[int, _Buffer] = field(default_factory=dict)
    spares: list[_Buffer] = field(default_factory=list)


class ReservedBlockManager:
    """Each sequence has a chunk for all the tokens that it may get, from its entry to its end.

    No sequence ever runs out of blocks, so none is preempted, and nothing is shared: a fork copies
    the parent's blocks. Block tables look like the paged ones, so that the same kernels serve both.
    Orca schedules the sequences of a request like requests of their own, each of which computes the
    prompt again; here siblings copy it, so these baselines are a little faster than Orca with
    parallel sampling, while memory, all that admission depends on, is the same.
    """

    prefixes = NoPinnedPrefixes()
    marks = NoPrefixMarks()

    def __init__(
        self, num_blocks: int, block_size: int, *, max_len: int, estimate: OutputEstimate
    ) -> None:
        """Make an empty pool.

        Args:
            num_blocks: blocks of the pool.
            block_size: tokens per block.
            max_len: tokens of the longest sequence; no reservation is longer.
            estimate: tokens of output to reserve for a request's `max_tokens`; at least that many.
        """
        self._block_size = block_size
        self._max_len = max_len
        self._estimate = estimate
        self._buddy = BuddyAllocator(num_blocks, chunk_size(div_ceil(max_len, block_size)))
        self._reservations: dict[int, _Reservation] = {}

    def can_allocate(self, group: SequenceGroup) -> bool:
        """See `BlockManager.can_allocate`; there must be room for all siblings at once."""
        return self._buddy.can_allocate(group.num_sequences, self._size(group).num_blocks)

    def allocate(self, group: SequenceGroup) -> list[Allocation]:
        """See `BlockManager.allocate`."""
        size = self._size(group)
        reservation = _Reservation(size=size, keeps_spares=group.beam is not None)
        for _ in range(group.num_sequences):
            reservation.spares.append(_Buffer(self._buddy.allocate(size.num_blocks)))
        return [self._enter(reservation, sequence) for sequence in group.live]

    def num_extendable(self, sequence: Sequence, count: int) -> int:
        """See `BlockManager.num_extendable`; all blocks are there from the beginning."""
        return count

    def extend(self, sequence: Sequence, count: int) -> BlockTableUpdate:
        """See `BlockManager.extend`."""
        return NO_UPDATE

    def can_append(self, sequence_ids: list[int]) -> bool:
        """See `BlockManager.can_append`."""
        return True

    def append(self, sequence_id: int) -> BlockTableUpdate:
        """See `BlockManager.append`."""
        self._reservations[sequence_id].held[sequence_id].length += 1
        return NO_UPDATE

    def fork(self, parent_id: int, child_id: int) -> BlockTableUpdate:
        """See `BlockManager.fork`; a beam that is forked into keeps the buffer that it has."""
        reservation = self._reservations[parent_id]
        self._reservations[child_id] = reservation
        if child_id not in reservation.held:
            reservation.held[child_id] = reservation.spares.pop()
        parent, child = reservation.held[parent_id], reservation.held[child_id]
        child.length = parent.length
        num_used = div_ceil(parent.length, self._block_size)
        return BlockTableUpdate(
            new_blocks=tuple(enumerate(self.block_table(child_id))),
            copies=tuple((parent.start + i, child.start + i) for i in range(num_used)),
        )

    def mark_computed(self, sequence: Sequence) -> None:
        """See `BlockManager.mark_computed`; nothing is found again."""

    def free(self, sequence_id: int) -> None:
        """See `BlockManager.free`; spare buffers of a group go with its last sequence."""
        reservation = self._reservations.pop(sequence_id, None)
        if reservation is None:
            return
        buffer = reservation.held.pop(sequence_id)
        if reservation.keeps_spares:
            reservation.spares.append(_Buffer(buffer.start))
        else:
            self._buddy.free(buffer.start, reservation.size.num_blocks)
        if not reservation.held:
            for spare in reservation.spares:
                self._buddy.free(spare.start, reservation.size.num_blocks)

    def block_table(self, sequence_id: int) -> tuple[int, ...]:
        """See `BlockManager.block_table`."""
        reservation = self._reservations[sequence_id]
        start = reservation.held[sequence_id].start
        return tuple(range(start, start + reservation.size.num_blocks))

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """See `BlockManager.num_distinct_blocks`."""
        return sum(len(self.block_table(sequence.sequence_id)) for sequence in group.live)

    def num_tokens_kept_by_others(self, group: SequenceGroup) -> int:
        """See `BlockManager.num_tokens_kept_by_others`; nothing is shared."""
        return 0

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """See `BlockManager.can_swap_out`; what has entered stays to its end."""
        return False

    def swap_out(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """See `BlockManager.swap_out`."""
        raise AssertionError("reserved memory is never swapped")

    def can_swap_in(self, group: SequenceGroup) -> bool:
        """See `BlockManager.can_swap_in`."""
        return False

    def swap_in(self, group: SequenceGroup) -> tuple[list[tuple[int, int]], list[Allocation]]:
        """See `BlockManager.swap_in`."""
        raise AssertionError("reserved memory is never swapped")

    def discard(self, group: SequenceGroup) -> None:
        """See `BlockManager.discard`."""

    def swap_keys(self, swap_blocks: Iterable[int]) -> bytes:
        """See `BlockManager.swap_keys`."""
        return b""

    def finish_plan(self) -> list[tuple[int, int]]:
        """See `BlockManager.finish_plan`."""
        return []

    def spoil(self, blocks: set[int]) -> set[int]:
        """See `BlockManager.spoil`."""
        return set()

    def spoil_swapped(self, swap_blocks: Iterable[int]) -> None:
        """See `BlockManager.spoil_swapped`."""

    def give_up(self, group: SequenceGroup) -> None:
        """See `BlockManager.give_up`."""

    def usage(self) -> MemoryUsage:
        """See `BlockManager.usage`."""
        filled = reserved = internal = external = 0
        # every sequence of a group refers to the same reservation
        for reservation in {id(r): r for r in self._reservations.values()}.values():
            size = reservation.size
            buffers = [*reservation.held.values(), *reservation.spares]
            length = sum(buffer.length for buffer in buffers)
            chunk = chunk_size(size.num_blocks) * self._block_size
            filled += length
            reserved += len(buffers) * size.needed - length
            internal += len(buffers) * (size.num_slots - size.needed)
            external += len(buffers) * (chunk - size.num_slots)
        return MemoryUsage(
            total=self._buddy.num_blocks * self._block_size,
            filled=filled,
            reserved=reserved,
            internal=internal,
            external=external,
            cached=0,
            free=self._buddy.num_free * self._block_size,
        )

    def snapshot(self, sequence_ids: Iterable[int]) -> PoolSnapshot:
        """See `BlockManager.snapshot`; buffers that are kept for later forks are in use, too."""
        references = int32(bytes(4 * self._buddy.num_blocks))
        for reservation in {id(r): r for r in self._reservations.values()}.values():
            for buffer in (*reservation.held.values(), *reservation.spares):
                num_blocks = reservation.size.num_blocks
                references[buffer.start : buffer.start + num_blocks] = int32([1] * num_blocks)
        found = [
            self.block_table(each) if each in self._reservations else () for each in sequence_ids
        ]
        return PoolSnapshot(
            references=references,
            kept=bytes(self._buddy.num_blocks),
            pinned=int32(),
            table_lens=int32([len(table) for table in found]),
            tables=int32([block for table in found for block in table]),
        )

    def _size(self, group: SequenceGroup) -> _Size:
        prompt_len = len(group.request.prompt)
        num_slots = reserved_slots(
            prompt_len, group.max_tokens, max_len=self._max_len, estimate=self._estimate
        )
        return _Size(
            needed=max_positions(prompt_len, group.max_tokens),
            num_slots=num_slots,
            num_blocks=div_ceil(num_slots, self._block_size),
        )

    def _enter(self, reservation: _Reservation, sequence: Sequence) -> Allocation:
        buffer = reservation.spares.pop()
        buffer.length = sequence.num_known
        reservation.held[sequence.sequence_id] = buffer
        self._reservations[sequence.sequence_id] = reservation
        table = self.block_table(sequence.sequence_id)
        return Allocation(sequence, BlockTableUpdate(tuple(enumerate(table))), 0)
