"""Paged memory: blocks on demand, the watermark, and where slots are."""

import pytest

from engine.core.block_pool import BlockPool
from engine.core.memory import Admission, PagedMemory
from engine.types import MemoryUsage


def test_a_block_is_allocated_with_the_first_token_that_needs_it() -> None:
    memory = PagedMemory(num_blocks=4, block_size=2)
    assert memory.append(7, 3) == [(0, 0), (1, 1)]
    assert memory.append(7, 1) == []
    assert memory.append(7, 1) == [(2, 2)]
    assert memory.block_table(7) == (0, 1, 2)


def test_blocks_of_a_sequence_need_not_be_contiguous() -> None:
    memory = PagedMemory(num_blocks=4, block_size=1)
    memory.append(1, 1)
    memory.append(2, 1)
    memory.append(1, 1)
    assert memory.block_table(1) == (0, 2)


def test_freed_blocks_are_handed_out_again_in_their_old_order() -> None:
    memory = PagedMemory(num_blocks=4, block_size=1)
    memory.append(1, 3)
    memory.free(1)
    memory.append(2, 3)
    assert memory.block_table(2) == (0, 1, 2)


@pytest.mark.parametrize(("num_tokens", "fits"), [(1, True), (5, True), (6, False)])
def test_a_sequence_can_grow_into_its_last_block_and_the_free_ones(
    num_tokens: int, fits: bool
) -> None:
    memory = PagedMemory(num_blocks=3, block_size=4)
    memory.append(1, 3)
    memory.append(2, 4)
    assert memory.can_append(1, num_tokens) is fits


def test_a_full_block_leaves_no_room_when_the_pool_is_empty() -> None:
    memory = PagedMemory(num_blocks=1, block_size=4)
    memory.append(1, 4)
    assert not memory.can_append(1, 1)


@pytest.mark.parametrize(
    ("num_tokens", "max_positions", "answer"),
    [
        (4, 8, Admission.NOW),
        (5, 8, Admission.LATER),
        (4, 9, Admission.NEVER),
    ],
)
def test_admission_looks_at_the_free_blocks_and_at_the_whole_pool(
    num_tokens: int, max_positions: int, answer: Admission
) -> None:
    memory = PagedMemory(num_blocks=2, block_size=4)
    memory.append(1, 1)
    assert memory.can_admit(num_tokens, max_positions) is answer


def test_the_watermark_is_kept_free_of_newcomers_but_not_of_growth() -> None:
    memory = PagedMemory(num_blocks=10, block_size=1, watermark=0.2)
    memory.append(1, 3)
    assert memory.can_admit(5, 10) is Admission.NOW
    assert memory.can_admit(6, 10) is Admission.LATER
    assert memory.can_append(1, 7)


def test_the_watermark_does_not_apply_to_an_empty_pool() -> None:
    memory = PagedMemory(num_blocks=10, block_size=1, watermark=0.2)
    assert memory.can_admit(10, 10) is Admission.NOW


def test_usage_sums_to_the_pool() -> None:
    memory = PagedMemory(num_blocks=5, block_size=4)
    memory.append(1, 5)
    memory.append(2, 4)
    assert memory.usage() == MemoryUsage(total=20, filled=9, internal=3, free=8)
    memory.free(1)
    assert memory.usage() == MemoryUsage(total=20, filled=4, internal=0, free=16)


def test_a_shared_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share(block)
    pool.release(block)
    assert (pool.references(block), pool.num_free) == (1, 1)
    pool.release(block)
    assert (pool.references(block), pool.num_free) == (0, 2)


def test_a_free_block_is_neither_shared_nor_released() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError):
        pool.release(block)
    with pytest.raises(AssertionError):
        pool.share(block)
    assert pool.num_free == 1
