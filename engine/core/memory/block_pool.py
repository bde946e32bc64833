"""Blocks of the KV pool: reference counts, and blocks kept for their contents."""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice


class BlockPool:
    """Allocates physical blocks [0, num_blocks) and counts the references to each (section 4.4).

    A block without references is free, or kept when its contents may be asked for again (see
    `keep`). Free blocks are allocated first, the most recently released one first, as it is the
    likeliest to be in a cache of the processor; then kept blocks, the least recently used one
    first. A pinned block is kept, and never allocated anew.

    Attributes:
        num_evicted: kept blocks that were allocated and so lost their contents.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        """Args: on_evict: called with each kept block that is allocated and loses its contents."""
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._references = array("i", bytes(4 * num_blocks))
        self._pins = array("i", bytes(4 * num_blocks))
        self._num_unused_pinned = 0
        self.num_evicted = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_kept = bytearray(num_blocks)
        self._unused_kept: OrderedDict[int, None] = OrderedDict()
        # of those, the ones that `take_unsaved` has not named
        self._unsaved: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: without reference and pin, kept or not."""
        return len(self._free) + len(self._unused_kept)

    @property
    def num_unused_kept(self) -> int:
        """Blocks without reference and pin that still hold contents worth keeping."""
        return len(self._unused_kept)

    @property
    def num_unused_pinned(self) -> int:
        """Blocks without a reference that are pinned."""
        return self._num_unused_pinned

    @property
    def num_empty(self) -> int:
        """Blocks that can be allocated and hold nothing worth keeping."""
        return len(self._free)

    def references(self, block: int) -> int:
        """References to a block."""
        return self._references[block]

    def is_free(self, block: int) -> bool:
        """Whether a block can be allocated; one that is kept can also be shared."""
        return not self._references[block] and not self._pins[block]

    def allocate(self) -> int:
        """Take a block with one reference; the caller has asked `num_free`."""
        block = self._free.pop() if self._free else self._evict()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block that is in use or kept."""
        if self._references[block] == 0:
            self._take_unused(block)
        self._references[block] += 1

    def release(self, block: int) -> bool:
        """Drop a reference; returns whether it was the last."""
        assert self._references[block] > 0
        self._references[block] -= 1
        if self._references[block]:
            return False
        self._give_back(block)
        return True

    def release_first(self, block: int) -> bool:
        """Do the same; without a reference it is the first kept block to lose its contents."""
        is_last = self.release(block)
        if is_last and block in self._unused_kept:
            self._unused_kept.move_to_end(block, last=False)
        return is_last

    def keep(self, block: int) -> None:
        """From now on keep the contents of a block in use beyond its last reference."""
        assert self._references[block] > 0
        self._is_kept[block] = True

    def drop(self, block: int) -> None:
        """Do not keep the contents of a block in use after all."""
        assert self._references[block] > 0
        self._is_kept[block] = False

    def take_unsaved(self, count: int) -> list[int]:
        """Unused kept blocks, the next to lose their contents first, each once until it is used."""
        blocks = list(islice(self._unsaved, count))
        for block in blocks:
            del self._unsaved[block]
        return blocks

    def pin(self, block: int) -> None:
        """Never allocate a kept block until it has been unpinned as often as it was pinned."""
        assert self._is_kept[block]
        if self.is_free(block):
            self._take_kept(block)
            self._num_unused_pinned += 1
        self._pins[block] += 1

    def unpin(self, block: int) -> None:
        """Take back a pin; an unused block is kept as if it had just been released."""
        assert self._pins[block] > 0
        self._pins[block] -= 1
        if self.is_free(block):
            self._num_unused_pinned -= 1
            self._unused_kept[block] = self._unsaved[block] = None

    def _take_unused(self, block: int) -> None:
        if self._pins[block]:
            self._num_unused_pinned -= 1
        else:
            self._take_kept(block)

    def _take_kept(self, block: int) -> None:
        del self._unused_kept[block]
        self._unsaved.pop(block, None)

    def _give_back(self, block: int) -> None:
        if self._pins[block]:
            self._num_unused_pinned += 1
        elif self._is_kept[block]:
            self._unused_kept[block] = self._unsaved[block] = None
        else:
            self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._unused_kept.popitem(last=False)
        self.num_evicted += 1
        self._unsaved.pop(block, None)
        self._is_kept[block] = False
        if self._on_evict is not None:
            self._on_evict(block)
        return block
