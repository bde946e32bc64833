"""Which blocks of the swap space in CPU memory hold a swapped group (paper, section 4.5)."""

from collections.abc import Iterable

from engine.core.sequence import Sequence


class SwapSpace:
    """Swap blocks [0, num_blocks), as large as those of the GPU.

    Attributes:
        tables: swap blocks of each swapped sequence in the order of its tokens.
    """

    def __init__(self, num_blocks: int) -> None:
        self.tables: dict[int, list[int]] = {}
        self._num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Swap blocks that hold nothing."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Swap blocks that hold a block of a swapped group."""
        return self._num_blocks - len(self._free)

    def store(self, blocks: list[int]) -> dict[int, int]:
        """Assign a swap block to each of the distinct GPU blocks."""
        return {block: self._free.pop() for block in blocks}

    def discard(self, sequences: Iterable[Sequence]) -> None:
        """Free what no other sequence holds; a no-op for sequences that hold nothing."""
        tables = [self.tables.pop(s.sequence_id) for s in sequences if s.sequence_id in self.tables]
        if tables:
            kept = {block for table in self.tables.values() for block in table}
            given_up = dict.fromkeys(block for table in tables for block in table)
            self._free += [block for block in given_up if block not in kept]
