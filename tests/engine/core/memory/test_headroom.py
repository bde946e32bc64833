"""How much room the paged pool keeps for those who are in it."""

from engine.config import SchedulerConfig
from engine.core.memory.headroom import Headroom
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.scheduling.grouping import make_group
from engine.core.sequence_group import SequenceGroup
from engine.types import Capacity, Request, SamplingParams, int32

BLOCK_SIZE = 4


def _group(first_id: int, prompt_len: int) -> SequenceGroup:
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=64, prompt_share=1.0)
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    request = Request(request_id=first_id, prompt=int32([1] * prompt_len), sampling=sampling)
    capacity = Capacity(num_blocks=64, block_size=BLOCK_SIZE, num_rows=64)
    return make_group(request, first_id, config, capacity)


def _block_manager(num_blocks: int, watermark: float = 0.0) -> PagedBlockManager:
    return PagedBlockManager(
        num_blocks,
        BLOCK_SIZE,
        headroom=Headroom(watermark=watermark, growth_blocks=0.5),
        prefix_cache=False,
    )


def test_sequences_can_grow_as_long_as_there_is_a_block_for_each_that_needs_one() -> None:
    manager = _block_manager(5)
    for sequence_id in range(3):
        manager.allocate(_group(sequence_id, BLOCK_SIZE))
    assert manager.can_append([0, 1])
    assert not manager.can_append([0, 1, 2])
    manager.append(0)
    # the first has room in its second block now
    assert manager.can_append([0, 1])
    manager.append(1)
    assert manager.can_append([0, 1])
    assert not manager.can_append([2])


def test_a_group_that_enters_leaves_half_a_block_for_each_sequence_in_the_pool() -> None:
    manager = _block_manager(9)
    for sequence_id in range(6):
        manager.allocate(_group(sequence_id, BLOCK_SIZE))
    # three of nine are free, and three are left to the six
    assert not manager.can_allocate(_group(9, 1))
    for sequence_id in range(2):
        manager.free(sequence_id)
    # five are free, two are left to the four
    assert manager.can_allocate(_group(9, 3 * BLOCK_SIZE))
    assert not manager.can_allocate(_group(9, 3 * BLOCK_SIZE + 1))


def test_the_watermark_is_the_least_that_is_left() -> None:
    manager = _block_manager(20, watermark=0.25)
    manager.allocate(_group(0, BLOCK_SIZE))
    assert manager.can_allocate(_group(1, 14 * BLOCK_SIZE))
    assert not manager.can_allocate(_group(1, 14 * BLOCK_SIZE + 1))


def test_an_empty_pool_lets_in_what_fits() -> None:
    assert _block_manager(14, watermark=0.25).can_allocate(_group(0, 14 * BLOCK_SIZE - 8))
