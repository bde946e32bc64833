"""Paged memory: blocks on demand, shared until written, found again, swapped as a group."""

from dataclasses import replace

import pytest

from engine.core.memory.block_manager import BlockTableUpdate
from engine.core.memory.block_table import BlockTable, spread
from engine.core.memory.headroom import NO_HEADROOM, Headroom
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.sequence_group import SequenceGroup
from engine.runtime.routing.scoring import marks_of_prompt
from engine.types import MemoryUsage, SamplingParams, int32
from tests.engine.core.harness.groups import group_of


def admit(manager: PagedBlockManager, group: SequenceGroup) -> list[int]:
    """Admits and computes a group; how many tokens of each sequence were there already."""
    assert manager.can_allocate(group)
    allocations = manager.allocate(group)
    for allocation in allocations:
        manager.mark_computed(allocation.sequence)
    return [allocation.num_cached for allocation in allocations]


def test_tokens_that_others_hold_too_stay_when_a_group_leaves() -> None:
    manager = PagedBlockManager(num_blocks=16, block_size=2)
    prompt = [1, 2, 3, 4, 5, 6]
    first = group_of(prompt, (7,))
    admit(manager, first)
    assert manager.num_tokens_kept_by_others(first) == 0, "no other group holds it"
    later = group_of([1, 2, 3, 4, 8], first_id=1)
    assert admit(manager, later) == [4]
    assert manager.num_tokens_kept_by_others(first) == manager.num_tokens_kept_by_others(later) == 4
    manager.free(1)
    assert manager.num_tokens_kept_by_others(first) == 0


def test_what_siblings_share_leaves_with_their_group() -> None:
    manager = PagedBlockManager(num_blocks=16, block_size=2)
    admit(manager, group_of([1, 2, 3, 4]))
    manager.fork(0, 1)
    assert manager.num_tokens_kept_by_others(group_of([1, 2, 3, 4], (5,), (6,))) == 0


def test_a_deterministic_group_finds_nothing_again() -> None:
    manager = PagedBlockManager(num_blocks=16, block_size=2)
    sampling = SamplingParams(max_tokens=4, deterministic=True)
    group = group_of([1, 2, 3], sampling=sampling)
    admit(manager, group)
    assert admit(manager, group_of([1, 2, 3], first_id=1)) == [2]
    assert manager.num_tokens_kept_by_others(group) == 0


def test_a_block_is_allocated_with_the_first_token_that_needs_it() -> None:
    manager = PagedBlockManager(num_blocks=4, block_size=2)
    admit(manager, group_of([1, 2, 3]))
    assert manager.block_table(0) == (0, 1)
    assert manager.append(0) == BlockTableUpdate()
    assert manager.append(0) == BlockTableUpdate(new_blocks=((2, 2),))


def test_blocks_of_a_sequence_need_not_be_contiguous() -> None:
    manager = PagedBlockManager(num_blocks=4, block_size=1)
    admit(manager, group_of([1]))
    admit(manager, group_of([2], first_id=1))
    manager.append(0)
    assert manager.block_table(0) == (0, 2)


@pytest.mark.parametrize(("num_blocks", "fits"), [(3, True), (2, False)])
def test_all_that_grow_need_a_block_each(num_blocks: int, fits: bool) -> None:
    manager = PagedBlockManager(num_blocks, block_size=4)
    admit(manager, group_of([1] * 4))
    admit(manager, group_of([2] * 3, first_id=1))
    assert manager.can_append([0, 1]) is fits
    assert manager.can_append([1])


@pytest.mark.parametrize(("prompt_len", "fits"), [(4, True), (5, False)])
def test_admission_looks_at_the_free_blocks(prompt_len: int, fits: bool) -> None:
    manager = PagedBlockManager(num_blocks=2, block_size=4)
    admit(manager, group_of([1]))
    group = group_of([2] * prompt_len, first_id=1)
    assert manager.can_allocate(group) is fits


def test_the_watermark_binds_groups_that_enter_and_not_those_that_grow() -> None:
    manager = PagedBlockManager(
        num_blocks=10, block_size=1, headroom=Headroom(watermark=0.2, growth_blocks=0.0)
    )
    admit(manager, group_of([1] * 7))
    assert manager.can_allocate(group_of([2], first_id=1))
    assert not manager.can_allocate(group_of([2, 3], first_id=2))
    manager.append(0)
    assert manager.can_append([0])


def test_the_watermark_does_not_apply_to_an_empty_pool() -> None:
    manager = PagedBlockManager(
        num_blocks=10, block_size=1, headroom=Headroom(watermark=0.2, growth_blocks=0.0)
    )
    group = group_of(list(range(10)))
    assert manager.can_allocate(group)


@pytest.mark.parametrize(("num_blocks", "fits"), [(6, True), (5, False)])
def test_a_group_that_comes_back_leaves_what_a_prompt_has_still_to_get(
    num_blocks: int, fits: bool
) -> None:
    manager = PagedBlockManager(
        num_blocks,
        block_size=1,
        num_swap_blocks=2,
        headroom=replace(NO_HEADROOM, most_at_once=1),
    )
    swapped = group_of([1])
    # it enters with one block, and gets three more chunk by chunk
    growing = group_of([3, 4, 5, 6], first_id=1)
    admit(manager, swapped)
    manager.swap_out(swapped)
    manager.free(0)
    admit(manager, growing)
    assert manager.can_swap_in(swapped) is fits


def test_a_fork_shares_blocks_until_one_of_the_two_writes() -> None:
    manager = PagedBlockManager(num_blocks=8, block_size=4)
    admit(manager, group_of([1] * 6))
    manager.fork(0, 1)
    assert manager.block_table(1) == manager.block_table(0) == (0, 1)
    assert manager.usage() == MemoryUsage(
        total=32, filled=6, internal=2, cached=0, free=24, shared_saving=6
    )
    assert manager.append(0) == BlockTableUpdate(new_blocks=((1, 2),), copies=((1, 2),))
    # the other one has the block for itself now
    assert manager.append(1) == BlockTableUpdate()
    assert (manager.block_table(0), manager.block_table(1)) == ((0, 2), (0, 1))


def test_a_full_shared_block_is_not_copied() -> None:
    manager = PagedBlockManager(num_blocks=8, block_size=4)
    admit(manager, group_of([1] * 4))
    manager.fork(0, 1)
    assert manager.append(1) == BlockTableUpdate(new_blocks=((1, 1),))
    assert manager.append(0) == BlockTableUpdate(new_blocks=((1, 2),))


@pytest.mark.parametrize(("num_blocks", "fits"), [(3, True), (2, False)])
def test_of_three_users_of_a_block_two_need_a_copy(num_blocks: int, fits: bool) -> None:
    manager = PagedBlockManager(num_blocks, block_size=4)
    admit(manager, group_of([1] * 3))
    manager.fork(0, 1)
    manager.fork(0, 2)
    assert manager.can_append([0, 1, 2]) is fits


def test_a_fork_gives_back_what_the_child_held() -> None:
    manager = PagedBlockManager(num_blocks=4, block_size=1)
    admit(manager, group_of([1, 2]))
    manager.fork(0, 1)
    manager.append(1)
    manager.fork(0, 1)
    assert manager.block_table(1) == (0, 1)
    assert manager.usage().free + manager.usage().cached == 2


@pytest.mark.parametrize(("prompt_len", "num_cached"), [(7, 4), (8, 4), (9, 8), (12, 8), (13, 8)])
def test_cached_blocks_are_found_but_one_token_is_left_to_compute(
    prompt_len: int, num_cached: int
) -> None:
    manager = PagedBlockManager(num_blocks=9, block_size=4)
    admit(manager, group_of(list(range(8))))
    assert admit(manager, group_of(list(range(prompt_len)), first_id=1)) == [num_cached]
    shared = num_cached // 4
    assert manager.block_table(1)[:shared] == manager.block_table(0)[:shared]


def test_tenants_share_nothing() -> None:
    manager = PagedBlockManager(num_blocks=9, block_size=4)
    admit(manager, group_of(list(range(8)), salt=b"a"))
    assert admit(manager, group_of(list(range(9)), salt=b"b", first_id=1)) == [0]
    assert admit(manager, group_of(list(range(9)), salt=b"a", first_id=2)) == [8]


def test_contents_are_found_after_their_sequence_has_gone() -> None:
    manager = PagedBlockManager(num_blocks=4, block_size=4)
    admit(manager, group_of(list(range(9))))
    manager.free(0)
    assert manager.usage() == MemoryUsage(total=16, filled=0, internal=0, cached=8, free=8)
    assert admit(manager, group_of(list(range(9)), first_id=1)) == [8]


def test_the_head_of_a_prefix_is_evicted_last() -> None:
    manager = PagedBlockManager(num_blocks=3, block_size=4)
    admit(manager, group_of(list(range(12))))
    manager.free(0)
    admit(manager, group_of([99], first_id=1))
    manager.free(1)
    admit(manager, group_of([98, 97, 96, 95, 94], first_id=2))
    manager.free(2)
    assert admit(manager, group_of(list(range(12)), first_id=3)) == [4]


def test_what_is_not_computed_yet_is_not_found() -> None:
    manager = PagedBlockManager(num_blocks=9, block_size=4)
    group = group_of(list(range(12)))
    (first,) = group.sequences
    manager.allocate(group)
    first.num_scheduled = 7
    manager.mark_computed(first)
    assert admit(manager, group_of(list(range(12)), first_id=1)) == [4]


def test_marks_follow_what_is_cached() -> None:
    manager = PagedBlockManager(num_blocks=3, block_size=128)
    prompt, other = list(range(300)), list(range(1000, 1300))
    marks = marks_of_prompt(int32(prompt), b"salt", 128)
    assert len(marks) == 2
    admit(manager, group_of(prompt, salt=b"salt"))
    assert manager.marks.report(0.0, is_idle=True) == b"".join(marks)
    manager.free(0)
    assert manager.marks.report(0.0, is_idle=True) is None
    admit(manager, group_of(other, salt=b"salt", first_id=1))
    report = manager.marks.report(0.0, is_idle=True)
    assert report == b"".join(marks_of_prompt(int32(other), b"salt", 128))


def test_a_prefix_that_is_found_is_the_last_of_the_marks() -> None:
    manager = PagedBlockManager(num_blocks=9, block_size=128)
    prompts = [list(range(200)), list(range(1000, 1200))]
    for number, prompt in enumerate([*prompts, prompts[0]]):
        admit(manager, group_of(prompt, first_id=number))
    first, second = (b"".join(marks_of_prompt(int32(prompt), b"", 128)) for prompt in prompts)
    assert manager.marks.report(0.0, is_idle=True) == second + first


def test_unused_blocks_that_are_hit_no_longer_count_as_free() -> None:
    manager = PagedBlockManager(num_blocks=3, block_size=4)
    admit(manager, group_of(list(range(8))))
    manager.free(0)
    admit(manager, group_of([99], first_id=1))
    assert manager.usage().cached == 8
    assert not manager.can_allocate(group_of(list(range(9)), first_id=2))


def test_without_the_cache_nothing_is_kept() -> None:
    manager = PagedBlockManager(num_blocks=4, block_size=4, prefix_cache=False)
    assert manager.marks.report(0.0, is_idle=True) is None
    admit(manager, group_of(list(range(9))))
    manager.free(0)
    assert manager.usage().cached == 0


def test_a_recomputed_group_shares_the_full_blocks_of_its_prompt() -> None:
    manager = PagedBlockManager(num_blocks=8, block_size=4, prefix_cache=False)
    group = group_of([1] * 6, (7, 8, 9), (5,))
    assert admit(manager, group) == [0, 4]
    assert manager.block_table(0) == (0, 1, 2)
    assert manager.block_table(1) == (0, 3)


def test_spoiled_blocks_spread_until_no_table_has_more_of_them() -> None:
    # block 5 comes behind a spoiled one in the last table only, and is in the second one as well,
    # before 6, which the first has of it
    tables = {0: BlockTable([1, 2, 6]), 1: BlockTable([4, 5, 6, 7]), 2: BlockTable([8, 5, 9])}
    blocks = {7, 8}
    assert spread(blocks, tables) == {0, 1, 2}
    assert blocks == {5, 6, 7, 8, 9}
