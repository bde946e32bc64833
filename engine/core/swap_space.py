"""Which slot of the CPU block pool holds which block of a swapped group (paper, section 4.5)."""

from collections.abc import Iterable

from engine.core.sequence import Sequence


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

    def discard(self, sequences: Iterable[Sequence]) -> None:
        """Give back the slots that no other sequence holds; a no-op for those that hold none."""
        tables = [self.tables.pop(s.sequence_id) for s in sequences if s.sequence_id in self.tables]
        if tables:
            kept = {slot for table in self.tables.values() for slot in table}
            given_up = dict.fromkeys(slot for table in tables for slot in table)
            self._free += [slot for slot in given_up if slot not in kept]
