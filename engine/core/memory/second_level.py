"""The second level of the prefix cache: full blocks that the pool loses, kept in the swap space.

Blocks are saved by the plan that hands them out anew, at the latest; where the pool is nearly full
some are saved beside each plan before that, those first that will be lost first. A prompt that
begins with them brings them back.
"""

from engine.core.memory.block_pool import BlockPool
from engine.core.memory.prefix_index import NoPrefixIndex, PrefixIndex
from engine.core.memory.swap_space import SwapSpace
from engine.core.sequence import Sequence
from engine.types import IntColumn


class SecondLevel:
    """Saves blocks to what swapped groups leave free of the swap space; closed at first."""

    def __init__(
        self, pool: BlockPool, index: PrefixIndex | NoPrefixIndex, swap: SwapSpace
    ) -> None:
        self._pool = pool
        self._index = index
        self._swap = swap
        self._most_saved = 0
        # of blocks that the next plan hands out anew
        self._evicted: list[tuple[int, int]] = []

    def open(self, most_saved: int, keys: IntColumn) -> None:
        """Begin to save.

        Args:
            most_saved: blocks that each plan may copy before the pool loses them.
            keys: what the swap space has already, see `Capacity`.
        """
        self._most_saved = most_saved
        self._swap.adopt(keys)

    def find(self, sequence: Sequence, num_found: int) -> list[int]:
        """Swap blocks with what follows the cached blocks that the index has found for a sequence.

        Args:
            sequence: the one that the index was last asked to `match`.
            num_found: blocks that it found.
        """
        return self._swap.match(self._index.missing_keys(sequence, num_found))

    def take(self, sequence: Sequence, num_found: int) -> list[int]:
        """As `find`; these swap blocks stay until the plan that copies them is complete."""
        found = self.find(sequence, num_found)
        self._swap.read(found)
        return found

    def save_evicted(self, block: int) -> None:
        """Save a block that the pool hands out, unless a plan has done so before."""
        key = self._index.key(block)
        swap_block = self._swap.insert(key) if key is not None and self._most_saved else None
        if swap_block is not None:
            self._evicted.append((block, swap_block))

    def finish_plan(self) -> list[tuple[int, int]]:
        """See `BlockManager.finish_plan`; an empty half of the pool is not worth a copy."""
        pairs, self._evicted = self._evicted, []
        if 2 * self._pool.num_empty < self._pool.num_blocks:
            for block in self._pool.take_unsaved(self._most_saved):
                key = self._index.key(block)
                swap_block = None if key is None else self._swap.insert(key)
                if swap_block is not None:
                    pairs.append((block, swap_block))
        # overwritten, so that nobody finds them after the death of this process either
        pairs += [(0, swap_block) for swap_block in self._swap.take_spoiled()]
        self._swap.end_plan()
        return pairs
