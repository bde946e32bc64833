"""Swapping: each block once, its swap block until the group is back or gone."""

import pytest

from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.swap_space import SwapSpace
from engine.core.sequence_group import SequenceGroup
from engine.types import FinishReason, SamplingParams, int64
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


def _key(number: int) -> bytes:
    return bytes([number]) * 32


def test_a_match_ends_at_the_first_key_that_is_missing() -> None:
    space = SwapSpace(4)
    first, third = space.insert(_key(1)), space.insert(_key(3))
    space.end_plan()
    assert first is not None
    assert third is not None
    assert space.match([_key(1), _key(2), _key(3)]) == [first]
    assert space.keys([third]) == _key(3)
    assert space.insert(_key(1)) is None


def test_groups_take_the_places_of_what_was_least_recently_used() -> None:
    space = SwapSpace(3)
    for number in (1, 2, 3):
        space.insert(_key(number))
    space.end_plan()
    # it is used again, so the second one is next
    space.insert(_key(1))
    space.end_plan()
    assert (space.num_free, space.num_cached) == (3, 3)
    [(_, slot)] = space.store({0: [7]}, {7: space.tag(5)})
    assert not space.match([_key(2)])
    assert (space.num_free, space.num_cached, space.num_used) == (2, 2, 1)
    space.discard(group_of([1]).sequences)
    assert (space.num_free, space.num_cached, space.num_used) == (3, 2, 0)
    assert slot not in space.match([_key(1)]) + space.match([_key(3)])


def test_what_a_plan_writes_or_reads_stays_until_its_end() -> None:
    space = SwapSpace(1)
    slot = space.insert(_key(1))
    assert slot is not None
    assert (space.num_free, space.insert(_key(2))) == (0, None)
    space.end_plan()
    space.read([slot])
    assert space.insert(_key(2)) is None
    space.end_plan()
    assert space.insert(_key(2)) == slot


def test_full_blocks_of_a_group_are_copied_once_and_stay_when_it_is_back() -> None:
    space, first = SwapSpace(4), group_of([1])
    keys = {5: _key(1), 6: space.tag(9)}
    pairs = space.store({0: [5, 6]}, keys)
    assert [block for block, _ in pairs] == [5, 6]
    # another group with the same first block
    [(block, _)] = space.store({1: [7, 8]}, {7: _key(1), 8: space.tag(10)})
    assert (block, space.tables[1][0], space.num_used) == (8, pairs[0][1], 3)
    space.discard(first.sequences)
    assert space.num_used == 2
    space.discard(group_of([1], (), ()).sequences)
    assert space.match([_key(1)]) == [pairs[0][1]]
    assert (space.num_free, space.num_cached) == (4, 1)


def test_groups_hold_no_more_than_the_pool_has() -> None:
    manager = PagedBlockManager(3, 4, num_swap_blocks=100)
    group = group_of([1] * 8)
    manager.allocate(group)
    manager.swap_out(group)
    manager.free(0)
    for num_blocks, fits in ((1, True), (2, False)):
        other = group_of([2] * 4 * num_blocks, first_id=5)
        manager.allocate(other)
        assert manager.can_swap_out(other) is fits
        manager.free(5)


def test_what_another_scheduler_has_left_is_found_but_for_blocks_of_its_groups() -> None:
    left = SwapSpace(5)
    left.insert(_key(1))
    left.store({0: [5, 6]}, {5: _key(2), 6: left.tag(9)})
    slots = [*left.match([_key(1), _key(2)]), left.tables[0][1]]
    columns = int64([0] * 4 * 5)
    for slot in slots:
        columns[4 * slot : 4 * slot + 4] = int64(left.keys([slot]))
    space = SwapSpace(5)
    space.adopt(columns)
    assert space.match([_key(1), _key(2)]) == slots[:2]
    assert (space.num_free, space.num_cached, space.num_used) == (5, 2, 0)


def test_a_spoiled_block_is_overwritten_once_nobody_holds_it() -> None:
    space = SwapSpace(3)
    [(_, slot)] = space.store({0: [5]}, {5: _key(1)})
    space.spoil([slot])
    assert (space.match([_key(1)]), space.take_spoiled()) == ([], [])
    space.discard(group_of([1]).sequences)
    assert (space.take_spoiled(), space.keys([slot])) == ([slot], bytes(32))
    assert space.take_spoiled() == []


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
