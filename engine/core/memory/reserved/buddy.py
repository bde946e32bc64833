"""Chunks of contiguous blocks whose sizes are powers of two: a buddy allocator.

The baselines that reserve memory in advance allocate with it, as the paper does for Orca (section
6.1). Source of the algorithm: Knuth, The Art of Computer Programming, volume 1, section 2.5.
"""


def chunk_size(num_blocks: int) -> int:
    """Blocks of the chunk that holds `num_blocks`: the next power of two."""
    return 1 << (num_blocks - 1).bit_length()


class BuddyAllocator:
    """Hands out chunks of blocks [0, num_blocks), each aligned to its size.

    A chunk is split in halves, its buddies, until it is as small as asked for; free buddies merge
    again. The most recently freed chunk of a size is handed out first.
    """

    def __init__(self, num_blocks: int, max_chunk: int) -> None:
        """Args: max_chunk: blocks of the largest chunk, a power of two."""
        assert max_chunk == chunk_size(max_chunk)
        self.num_blocks = num_blocks
        self.num_free = 0
        self._max_chunk = max_chunk
        # size -> starts of free chunks; a dict is a stack whose inner items can be taken out too
        self._free: dict[int, dict[int, None]] = {
            1 << bit: {} for bit in range(max_chunk.bit_length())
        }
        size = max_chunk
        while self.num_free < num_blocks:
            if self.num_free + size > num_blocks:
                size //= 2
            else:
                self._free[size][self.num_free] = None
                self.num_free += size

    def can_allocate(self, num_chunks: int, num_blocks: int) -> bool:
        """Whether there is room for `num_chunks` chunks that hold `num_blocks` blocks each."""
        size = chunk_size(num_blocks)
        room = sum(len(starts) * (free // size) for free, starts in self._free.items())
        return num_chunks <= room

    def allocate(self, num_blocks: int) -> int:
        """Take a chunk that holds `num_blocks`; the caller has asked `can_allocate`.

        Returns:
            Its first block.
        """
        size = chunk_size(num_blocks)
        found = next(free for free, starts in self._free.items() if free >= size and starts)
        start, _ = self._free[found].popitem()
        while found > size:
            found //= 2
            self._free[found][start + found] = None
        self.num_free -= size
        return start

    def free(self, start: int, num_blocks: int) -> None:
        """Give back a chunk, with the arguments and result of its `allocate`."""
        size = chunk_size(num_blocks)
        self.num_free += size
        while size < self._max_chunk and start ^ size in self._free[size]:
            del self._free[size][start ^ size]
            start &= ~size
            size *= 2
        assert start not in self._free[size]
        self._free[size][start] = None
