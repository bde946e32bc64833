"""What the blocks of the swap space in CPU memory hold: swapped groups, and a second prefix cache.

Swapped groups come first (paper, section 4.5). What they leave free is a second level of the prefix
cache: full blocks that the pool is about to lose, found by the same chained hash, the least
recently used given up first. The full blocks of a swapped group are found in the same way.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count

from engine.core.memory.block_pool import BlockPool
from engine.core.sequence import Sequence
from engine.types import KEY_WORDS, IntColumn

_KEY_BYTES = 8 * KEY_WORDS
_NOTHING = bytes(_KEY_BYTES)
# instead of a hash, for blocks that nobody looks for: mark, request, number
_TAG = struct.Struct("<8sqqq")
_TAG_MARK = b"swapped\0"


class SwapSpace:
    """Swap blocks [0, num_blocks), as large as those of the GPU.

    What a plan reads or writes stays in its place until `end_plan`, since the order of reads and
    writes inside of a plan is not that of these calls.

    Attributes:
        tables: swap blocks of each swapped sequence in the order of its tokens.
    """

    def __init__(self, num_blocks: int, *, most_swapped: int | None = None) -> None:
        """Args: most_swapped: blocks that swapped groups may hold; all by default."""
        self.tables: dict[int, list[int]] = {}
        self._most_swapped = num_blocks if most_swapped is None else most_swapped
        self._pool = BlockPool(num_blocks, on_evict=self._lose)
        self._keys: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}
        self._holders: Counter[int] = Counter()
        self._busy: list[int] = []
        self._spoiled: dict[int, None] = {}
        self._tag_numbers = count()

    @property
    def num_free(self) -> int:
        """Blocks that further swapped groups can have; the cache gives way."""
        return min(self._pool.num_free, self._most_swapped - self.num_used)

    @property
    def num_used(self) -> int:
        """Blocks that swapped groups hold."""
        return len(self._holders)

    @property
    def num_cached(self) -> int:
        """Other blocks that hold something that may be looked for."""
        return self._pool.num_unused_kept

    def tag(self, request_id: int) -> bytes:
        """A key for a block of a request that nobody looks for, unlike any other."""
        return _TAG.pack(_TAG_MARK, request_id, next(self._tag_numbers), 0)

    def store(
        self, tables: Mapping[int, list[int]], keys: Mapping[int, bytes]
    ) -> list[tuple[int, int]]:
        """Keep the blocks of sequences.

        Args:
            tables: GPU blocks by sequence id.
            keys: hash, or tag, by GPU block.

        Returns:
            (GPU block, swap block) pairs to copy: each block once, unless it is here already.
        """
        found: dict[int, int] = {}
        copies = []
        for sequence_id, blocks in tables.items():
            for block in blocks:
                if block not in found and keys[block] in self._blocks:
                    found[block] = self._blocks[keys[block]]
                if block in found:
                    self._pool.share(found[block])
                else:
                    found[block] = self._take(keys[block])
                    copies.append((block, found[block]))
                self._holders[found[block]] += 1
            self.tables[sequence_id] = [found[block] for block in blocks]
        return copies

    def discard(self, sequences: Iterable[Sequence]) -> None:
        """Give up the blocks of sequences; what is hashed stays in the cache."""
        for sequence in sequences:
            for block in self.tables.pop(sequence.sequence_id, ()):
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]
                self._pool.release(block)

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """Blocks of the longest run of leading keys whose contents are here."""
        found = []
        for key in keys:
            if key not in self._blocks:
                break
            found.append(self._blocks[key])
        return found

    def read(self, blocks: Iterable[int]) -> None:
        """Note that a plan copies these to the GPU."""
        for block in blocks:
            self._pool.share(block)
            self._busy.append(block)

    def insert(self, key: bytes) -> int | None:
        """A block for the contents that a hash names; None if it is here, or there is no room."""
        if key in self._blocks:
            # it was used again
            self.read([self._blocks[key]])
            return None
        if not self._pool.num_free:
            return None
        block = self._take(key)
        self._busy.append(block)
        return block

    def end_plan(self) -> None:
        """Note that a plan is complete."""
        for block in self._busy:
            self._pool.release(block)
        self._busy.clear()

    def keys(self, blocks: Iterable[int]) -> bytes:
        """What blocks hold, 32 bytes each."""
        return b"".join(self._keys[block] for block in blocks)

    def spoil(self, blocks: Iterable[int]) -> None:
        """Forget blocks that do not hold what they should."""
        for block in blocks:
            if self._blocks.get(self._keys[block]) == block:
                del self._blocks[self._keys[block]]
                self._spoiled[block] = None

    def take_spoiled(self) -> list[int]:
        """Spoiled blocks that nobody holds, each once; a plan may overwrite them."""
        spoiled = [block for block in self._spoiled if self._pool.is_free(block)]
        for block in spoiled:
            del self._spoiled[block]
            self._keys[block] = _NOTHING
            self.read([block])
        return spoiled

    def _take(self, key: bytes) -> int:
        block = self._pool.allocate()
        self._spoiled.pop(block, None)
        self._keys[block] = key
        if not key.startswith(_TAG_MARK):
            self._blocks[key] = block
            self._pool.keep(block)
        return block

    def _lose(self, block: int) -> None:
        key = self._keys.pop(block)
        if self._blocks.get(key) == block:
            del self._blocks[key]

    def adopt(self, keys: IntColumn) -> None:
        """Cache what another scheduler has left, in an empty swap space; see `Capacity.swap_keys`.

        What no prompt can ask for is forgotten: the requests of that scheduler are gone.
        """
        data = keys.tobytes()
        for block in [self._pool.allocate() for _ in range(self._pool.num_blocks)]:
            key = data[block * _KEY_BYTES : (block + 1) * _KEY_BYTES]
            is_hash = key.strip(b"\0") and not key.startswith(_TAG_MARK)
            if is_hash and key not in self._blocks:
                self._keys[block] = key
                self._blocks[key] = block
                self._pool.keep(block)
            self._pool.release(block)
