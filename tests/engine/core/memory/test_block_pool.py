"""Blocks: references, and contents that outlive them."""

import pytest

from engine.core.memory.block_pool import BlockPool


def kept_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool of unused kept blocks, released from 0, and the list of the evicted ones."""
    evicted: list[int] = []
    pool = BlockPool(num_blocks, evicted.append)
    blocks = [pool.allocate() for _ in range(num_blocks)]
    for block in blocks:
        pool.keep(block)
        pool.release(block)
    return pool, evicted


def test_a_shared_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share(block)
    assert not pool.release(block)
    assert (pool.references(block), pool.num_free) == (1, 1)
    assert pool.release(block)
    assert (pool.references(block), pool.num_free) == (0, 2)


def test_a_free_block_is_neither_shared_nor_released() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError):
        pool.release(block)
    with pytest.raises(LookupError):
        pool.share(block)
    assert pool.num_free == 1


def test_the_block_released_last_is_handed_out_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    pool.release(blocks[2])
    pool.release(blocks[0])
    assert [pool.allocate(), pool.allocate()] == [blocks[0], blocks[2]]


def test_kept_blocks_count_as_free_until_they_are_shared_again() -> None:
    pool, evicted = kept_pool(2)
    assert (pool.num_free, pool.num_unused_kept) == (2, 2)
    pool.share(0)
    assert (pool.num_free, pool.num_unused_kept, pool.references(0)) == (1, 1, 1)
    assert evicted == []


def test_kept_blocks_are_evicted_least_recently_used_first() -> None:
    pool, evicted = kept_pool(3)
    pool.share(0)
    pool.release(0)
    assert [pool.allocate() for _ in range(3)] == [1, 2, 0]
    assert evicted == [1, 2, 0]


def test_free_blocks_are_handed_out_before_kept_ones() -> None:
    pool = BlockPool(2)
    kept, other = pool.allocate(), pool.allocate()
    pool.keep(kept)
    pool.release(kept)
    pool.release(other)
    assert pool.allocate() == other


def test_an_evicted_block_is_not_kept_any_more() -> None:
    pool, _ = kept_pool(1)
    pool.release(pool.allocate())
    assert (pool.num_free, pool.num_unused_kept) == (1, 0)
