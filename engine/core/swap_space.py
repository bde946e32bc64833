"""Which slot of the CPU block pool holds which block of a swapped group (paper, section 4.5)."""

from engine.core.sequence import SequenceGroup


class SwapSpace:
    """Slots [0, num_slots) of one block each.

    Attributes:
        tables: slots of each swapped sequence in the order of its blocks.
    """

    def __init__(self, num_slots: int) -> None:
        self.tables: dict[int, list[int]] = {}
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Slots that hold a block."""
        return self._num_slots - len(self._free)

    def store(self, blocks: list[int]) -> dict[int, int]:
        """Assign a slot to each of the distinct blocks."""
        return {block: self._free.pop() for block in blocks}

    def distinct_slots(self, group: SequenceGroup) -> list[int]:
        """Slots that a group holds, shared ones once."""
        tables = (self.tables.get(sequence.sequence_id, ()) for sequence in group.sequences)
        return list(dict.fromkeys(slot for table in tables for slot in table))

    def discard(self, group: SequenceGroup) -> None:
        """Give back the slots of a group; a no-op for one that holds none."""
        self._free += self.distinct_slots(group)
        for sequence in group.sequences:
            self.tables.pop(sequence.sequence_id, None)
