"""Swapping: each block once, its swap block until the group is back or gone."""

import pytest

from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.swap_space import SwapSpace
from engine.core.sequence_group import SequenceGroup
from engine.types import FinishReason, SamplingParams
from tests.engine.core.harness.groups import group_of


def swapped_pair(num_blocks: int, prompt_len: int) -> tuple[PagedBlockManager, SequenceGroup]:
    """A memory without blocks in use, and a swapped group of two that share all they have."""
    manager = PagedBlockManager(num_blocks, 4, num_swap_blocks=8, prefix_cache=False)
    group = group_of([1] * prompt_len, (), (), sampling=SamplingParams(max_tokens=9, n=2))
    manager.allocate(group_of([1] * prompt_len, sampling=group.request.sampling))
    manager.fork(0, 1)
    manager.swap_out(group)
    manager.free(0)
    manager.free(1)
    return manager, group


def test_swap_blocks_are_assigned_once_and_freed_once() -> None:
    space = SwapSpace(3)
    group = group_of([1], (), ())
    pairs = space.store({0: [7, 8], 1: [7]}, {7: space.tag(1), 8: space.tag(1)})
    assert [block for block, _ in pairs] == [7, 8]
    swap_blocks = dict(pairs)
    assert len(set(swap_blocks.values())) == 2
    assert space.tables == {0: [swap_blocks[7], swap_blocks[8]], 1: [swap_blocks[7]]}
    assert (space.num_free, space.num_used) == (1, 2)
    space.discard(group.sequences[:1])
    assert (space.num_free, space.num_used) == (2, 1)
    space.discard(group.sequences)
    space.discard(group.sequences)
    assert (space.num_free, space.num_used) == (3, 0)


def test_shared_blocks_are_swapped_once() -> None:
    manager = PagedBlockManager(8, 4, num_swap_blocks=8)
    manager.allocate(group_of([1] * 6))
    manager.fork(0, 1)
    manager.append(1)
    group = group_of([1] * 6, (), ())
    assert manager.num_distinct_blocks(group) == 3
    assert sorted(block for block, _ in manager.swap_out(group)) == [0, 1, 2]
    assert manager.usage().swapped == 12


@pytest.mark.parametrize(("num_swap_blocks", "fits"), [(1, False), (2, True)])
def test_a_group_is_swapped_only_as_a_whole(num_swap_blocks: int, fits: bool) -> None:
    manager = PagedBlockManager(8, 4, num_swap_blocks=num_swap_blocks)
    manager.allocate(group_of([1] * 6))
    assert manager.can_swap_out(group_of([1] * 6)) is fits


def test_a_group_comes_back_with_what_it_shared() -> None:
    manager, group = swapped_pair(8, prompt_len=6)
    pairs, allocations = manager.swap_in(group)
    assert len(pairs) == 2
    assert manager.block_table(0) == manager.block_table(1)
    assert [allocation.num_cached for allocation in allocations] == [6, 6]
    usage = manager.usage()
    assert (usage.filled, usage.shared_saving, usage.swapped) == (6, 6, 0)


@pytest.mark.parametrize(
    ("prompt_len", "num_needed"), [(5, 3), (8, 4)], ids=["one copies", "both grow"]
)
def test_a_group_comes_back_when_all_of_it_can_grow_by_a_token(
    prompt_len: int, num_needed: int
) -> None:
    for num_blocks in (num_needed, num_needed - 1):
        manager, group = swapped_pair(num_blocks, prompt_len)
        assert manager.can_swap_in(group) is (num_blocks == num_needed)


def test_ended_sequences_need_no_room_to_come_back() -> None:
    manager, group = swapped_pair(3, prompt_len=8)
    assert not manager.can_swap_in(group)
    group.sequences[1].finish_reason = FinishReason.STOP
    assert manager.can_swap_in(group)
    manager.swap_in(group)
    assert manager.usage().swapped == 0


def test_one_copy_is_enough_for_two_to_come_back() -> None:
    # of two users of the last block one copies it, and the other writes into it
    manager, group = swapped_pair(3, prompt_len=6)
    assert manager.can_swap_in(group)
