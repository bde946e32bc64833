"""Blocks of the KV pool with reference counts."""

from array import array


class BlockPool:
    """Hands out block ids [0, num_blocks) and counts who uses each.

    A block whose last reference is released is free again. The most recently released block is
    handed out first, as it is the likeliest to be in a cache.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = array("i", bytes(4 * num_blocks))
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks without a reference."""
        return len(self._free)

    def references(self, block: int) -> int:
        """References to a block."""
        return self._references[block]

    def allocate(self) -> int:
        """Take a free block with one reference; the caller has asked `num_free`."""
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block in use."""
        assert self._references[block] > 0
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free.append(block)
