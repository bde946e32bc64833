"""Full blocks that the pool loses are found again in the swap space."""

from engine.core.memory.block_pool import BlockPool
from engine.core.memory.prefix_cache import PrefixCache, PrefixChain
from engine.core.memory.prefix_index import PrefixIndex
from engine.core.memory.second_level import SecondLevel
from engine.core.memory.swap_space import SwapSpace
from engine.types import int32, int64

CHAIN = PrefixChain.of_tenant(b"", 4).extended(int32(list(range(16))))


class CachedBlocks:
    """A pool of 4 blocks with the first blocks of one prefix, and 4 swap blocks."""

    def __init__(self, num_cached: int, most_saved: int | None = None) -> None:
        self.pool = BlockPool(4)
        self.swap = SwapSpace(4)
        cache = PrefixCache(4)
        self.level = SecondLevel(self.pool, PrefixIndex(self.pool, cache, 4), self.swap)
        if most_saved is not None:
            self.level.open(most_saved, int64())
        blocks = [self.pool.allocate() for _ in range(num_cached)]
        for link, block in zip(CHAIN.links, blocks, strict=False):
            cache.insert(link, block)
            self.pool.keep(block)
        for block in reversed(blocks):
            self.pool.release(block)

    def found(self) -> list[int]:
        """Swap blocks that hold the first blocks of the prefix."""
        return self.swap.match(link.key for link in CHAIN.links)


def test_nothing_is_saved_until_it_is_opened() -> None:
    cached = CachedBlocks(4)
    cached.level.save_evicted(0)
    assert cached.level.finish_plan() == []


def test_a_block_that_the_pool_hands_out_is_saved_by_the_next_plan_once() -> None:
    cached = CachedBlocks(1, most_saved=1)
    cached.level.save_evicted(0)
    assert cached.level.finish_plan() == [(0, 3)]
    assert cached.found() == [3]
    cached.level.save_evicted(0)
    assert cached.level.finish_plan() == []


def test_beside_each_plan_some_are_saved_the_next_to_be_lost_first() -> None:
    cached = CachedBlocks(4, most_saved=2)
    assert cached.level.finish_plan() == [(3, 3), (2, 2)]
    assert cached.level.finish_plan() == [(1, 1), (0, 0)]
    assert cached.found() == [0, 1, 2, 3]
    assert cached.level.finish_plan() == []


def test_while_half_of_the_pool_is_empty_nothing_is_saved_ahead() -> None:
    assert CachedBlocks(2, most_saved=2).level.finish_plan() == []
    assert CachedBlocks(3, most_saved=2).level.finish_plan() != []


def test_spoiled_swap_blocks_are_overwritten() -> None:
    cached = CachedBlocks(1, most_saved=1)
    cached.level.save_evicted(0)
    cached.level.finish_plan()
    cached.swap.spoil([3])
    assert cached.level.finish_plan() == [(0, 3)]
    assert cached.found() == []
