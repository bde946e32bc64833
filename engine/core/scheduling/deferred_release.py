"""Frees what sequences hold, once no plan in flight can touch it any more.

Plans are made ahead of results. When a sequence ends or is preempted, a plan that writes into its
blocks may still be running, so its row and blocks are freed with a delay. What it has computed,
prompt and output, stays in the prefix cache until its blocks are needed.
"""

from collections.abc import Collection, Iterable

from engine.core.memory.block_manager import BlockManager
from engine.core.scheduling.row_allocator import RowAllocator
from engine.core.sequence import Sequence
from engine.core.sequence_group import SequenceGroup
from engine.types import FinishReason


class DeferredRelease:
    """Sequences that have left the batch, each still with its row and blocks."""

    def __init__(self, block_manager: BlockManager, rows: RowAllocator) -> None:
        self._block_manager = block_manager
        self._rows = rows
        self._sequences: list[Sequence] = []
        self._completed_step = -1

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Free rows and blocks as soon as the last plan that touches them is complete."""
        for sequence in sequences:
            sequence.leave_batch()
            self._sequences.append(sequence)
        self._release()

    def spoil(self, sequence_ids: Collection[int]) -> None:
        """Keep nothing of what these sequences have computed."""
        for sequence in self._sequences:
            if sequence.sequence_id in sequence_ids:
                sequence.spoil()

    def release_reserved_rows(self, group: SequenceGroup) -> None:
        """Free the rows of siblings that were not forked yet, at once: no plan touches them."""
        for row in group.release_reserved_rows():
            self._rows.free(row)

    def complete(self, step: int) -> None:
        """Note that the plans up to a step are complete."""
        self._completed_step = step
        self._release()

    def _release(self) -> None:
        kept = []
        for sequence in self._sequences:
            if sequence.last_step > self._completed_step:
                kept.append(sequence)
                continue
            # what led to logits that are not finite may be broken itself: it is not found again
            if sequence.finish_reason is not FinishReason.ERROR and not sequence.is_spoiled:
                self._block_manager.mark_computed(sequence)
            self._block_manager.free(sequence.sequence_id)
            self._rows.free(sequence.release_row())
        self._sequences = kept
