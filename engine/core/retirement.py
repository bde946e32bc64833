"""Gives back what sequences hold, once no plan in flight can touch it any more.

What they have computed, prompt and output, can be found again until others need its room.
"""

from collections.abc import Iterable

from engine.core.memory import Memory
from engine.core.rows import Rows
from engine.core.sequence import Sequence, SequenceGroup
from engine.types import FinishReason


class Retirement:
    """Sequences on their way out of the batch, each with its row and blocks."""

    def __init__(self, memory: Memory, rows: Rows) -> None:
        self._memory = memory
        self._rows = rows
        self._sequences: list[Sequence] = []
        self._completed_step = -1

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Give back rows and blocks as soon as the last plan that touches them is complete."""
        for sequence in sequences:
            sequence.fork_row = -1
            self._sequences.append(sequence)
        self._release()

    def give_back_spares(self, group: SequenceGroup) -> None:
        """Give back rows of siblings that were not born, which no plan touches."""
        while group.spare_rows:
            self._rows.give_back(group.spare_rows.pop())

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
            # what led to logits that are not finite may be broken itself
            if sequence.finish_reason is not FinishReason.ERROR:
                self._memory.commit(sequence)
            self._memory.free(sequence.sequence_id)
            self._rows.give_back(sequence.row)
            sequence.row = -1
        self._sequences = kept
