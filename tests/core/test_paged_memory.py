"""Paged memory: blocks on demand, shared until written, found again, swapped as a group."""

import pytest

from engine.core.headroom import Headroom
from engine.core.memory import Growth
from engine.core.paged_memory import PagedMemory
from engine.core.sequence import SequenceGroup
from engine.types import MemoryUsage, SamplingParams
from tests.core.groups import group_of


def admit(memory: PagedMemory, group: SequenceGroup) -> list[int]:
    """Admits and computes a group; how many tokens of each sequence were there already."""
    assert memory.can_admit(group)
    admitted = memory.admit(group)
    for entry in admitted:
        memory.commit(entry.sequence)
    return [entry.num_cached for entry in admitted]


def test_tokens_that_others_hold_too_stay_when_a_group_leaves() -> None:
    memory = PagedMemory(num_blocks=16, block_size=2)
    prompt = [1, 2, 3, 4, 5, 6]
    first = group_of(prompt, (7,))
    admit(memory, first)
    assert memory.num_kept_tokens(first) == 0, "nobody else holds it"
    later = group_of([1, 2, 3, 4, 8], first_id=1)
    assert admit(memory, later) == [4]
    assert memory.num_kept_tokens(first) == memory.num_kept_tokens(later) == 4
    memory.free(1)
    assert memory.num_kept_tokens(first) == 0


def test_what_siblings_share_leaves_with_their_group() -> None:
    memory = PagedMemory(num_blocks=16, block_size=2)
    admit(memory, group_of([1, 2, 3, 4]))
    memory.fork(0, 1)
    assert memory.num_kept_tokens(group_of([1, 2, 3, 4], (5,), (6,))) == 0


def test_a_deterministic_group_finds_nothing_again() -> None:
    memory = PagedMemory(num_blocks=16, block_size=2)
    sampling = SamplingParams(max_tokens=4, deterministic=True)
    group = group_of([1, 2, 3], sampling=sampling)
    admit(memory, group)
    assert admit(memory, group_of([1, 2, 3], first_id=1)) == [2]
    assert memory.num_kept_tokens(group) == 0


def test_a_block_is_allocated_with_the_first_token_that_needs_it() -> None:
    memory = PagedMemory(num_blocks=4, block_size=2)
    admit(memory, group_of([1, 2, 3]))
    assert memory.block_table(0) == (0, 1)
    assert memory.append(0) == Growth()
    assert memory.append(0) == Growth(entries=((2, 2),))


def test_blocks_of_a_sequence_need_not_be_contiguous() -> None:
    memory = PagedMemory(num_blocks=4, block_size=1)
    admit(memory, group_of([1]))
    admit(memory, group_of([2], first_id=1))
    memory.append(0)
    assert memory.block_table(0) == (0, 2)


@pytest.mark.parametrize(("num_blocks", "fits"), [(3, True), (2, False)])
def test_all_that_grow_need_a_block_each(num_blocks: int, fits: bool) -> None:
    memory = PagedMemory(num_blocks, block_size=4)
    admit(memory, group_of([1] * 4))
    admit(memory, group_of([2] * 3, first_id=1))
    assert memory.can_append([0, 1]) is fits
    assert memory.can_append([1])


@pytest.mark.parametrize(("prompt_len", "fits"), [(4, True), (5, False)])
def test_admission_looks_at_the_free_blocks(prompt_len: int, fits: bool) -> None:
    memory = PagedMemory(num_blocks=2, block_size=4)
    admit(memory, group_of([1]))
    group = group_of([2] * prompt_len, first_id=1)
    assert memory.can_admit(group) is fits


def test_the_watermark_is_kept_free_of_newcomers_but_not_of_growth() -> None:
    memory = PagedMemory(
        num_blocks=10, block_size=1, headroom=Headroom(watermark=0.2, growth_blocks=0.0)
    )
    admit(memory, group_of([1] * 7))
    assert memory.can_admit(group_of([2], first_id=1))
    assert not memory.can_admit(group_of([2, 3], first_id=2))
    memory.append(0)
    assert memory.can_append([0])


def test_the_watermark_does_not_apply_to_an_empty_pool() -> None:
    memory = PagedMemory(
        num_blocks=10, block_size=1, headroom=Headroom(watermark=0.2, growth_blocks=0.0)
    )
    group = group_of(list(range(10)))
    assert memory.can_admit(group)


def test_a_fork_shares_blocks_until_one_of_the_two_writes() -> None:
    memory = PagedMemory(num_blocks=8, block_size=4)
    admit(memory, group_of([1] * 6))
    memory.fork(0, 1)
    assert memory.block_table(1) == memory.block_table(0) == (0, 1)
    assert memory.usage() == MemoryUsage(
        total=32, filled=6, internal=2, cached=0, free=24, shared_saving=6
    )
    assert memory.append(0) == Growth(entries=((1, 2),), copies=((1, 2),))
    # the other one is alone in the block now
    assert memory.append(1) == Growth()
    assert (memory.block_table(0), memory.block_table(1)) == ((0, 2), (0, 1))


def test_a_full_shared_block_is_not_copied() -> None:
    memory = PagedMemory(num_blocks=8, block_size=4)
    admit(memory, group_of([1] * 4))
    memory.fork(0, 1)
    assert memory.append(1) == Growth(entries=((1, 1),))
    assert memory.append(0) == Growth(entries=((1, 2),))


@pytest.mark.parametrize(("num_blocks", "fits"), [(3, True), (2, False)])
def test_of_three_users_of_a_block_two_need_a_copy(num_blocks: int, fits: bool) -> None:
    memory = PagedMemory(num_blocks, block_size=4)
    admit(memory, group_of([1] * 3))
    memory.fork(0, 1)
    memory.fork(0, 2)
    assert memory.can_append([0, 1, 2]) is fits


def test_a_fork_gives_back_what_the_child_held() -> None:
    memory = PagedMemory(num_blocks=4, block_size=1)
    admit(memory, group_of([1, 2]))
    memory.fork(0, 1)
    memory.append(1)
    memory.fork(0, 1)
    assert memory.block_table(1) == (0, 1)
    assert memory.usage().free + memory.usage().cached == 2


@pytest.mark.parametrize(("prompt_len", "num_cached"), [(7, 4), (8, 4), (9, 8), (12, 8), (13, 8)])
def test_cached_blocks_are_found_but_one_token_is_left_to_compute(
    prompt_len: int, num_cached: int
) -> None:
    memory = PagedMemory(num_blocks=9, block_size=4)
    admit(memory, group_of(list(range(8))))
    assert admit(memory, group_of(list(range(prompt_len)), first_id=1)) == [num_cached]
    shared = num_cached // 4
    assert memory.block_table(1)[:shared] == memory.block_table(0)[:shared]


def test_tenants_share_nothing() -> None:
    memory = PagedMemory(num_blocks=9, block_size=4)
    admit(memory, group_of(list(range(8)), salt=b"a"))
    assert admit(memory, group_of(list(range(9)), salt=b"b", first_id=1)) == [0]
    assert admit(memory, group_of(list(range(9)), salt=b"a", first_id=2)) == [8]


def test_contents_are_found_after_their_sequence_has_gone() -> None:
    memory = PagedMemory(num_blocks=4, block_size=4)
    admit(memory, group_of(list(range(9))))
    memory.free(0)
    assert memory.usage() == MemoryUsage(total=16, filled=0, internal=0, cached=8, free=8)
    assert admit(memory, group_of(list(range(9)), first_id=1)) == [8]


def test_the_head_of_a_prefix_is_evicted_last() -> None:
    memory = PagedMemory(num_blocks=3, block_size=4)
    admit(memory, group_of(list(range(12))))
    memory.free(0)
    admit(memory, group_of([99], first_id=1))
    memory.free(1)
    admit(memory, group_of([98, 97, 96, 95, 94], first_id=2))
    memory.free(2)
    assert admit(memory, group_of(list(range(12)), first_id=3)) == [4]


def test_what_is_not_computed_yet_is_not_found() -> None:
    memory = PagedMemory(num_blocks=9, block_size=4)
    group = group_of(list(range(12)))
    (first,) = group.sequences
    memory.admit(group)
    first.num_scheduled = 7
    memory.commit(first)
    assert admit(memory, group_of(list(range(12)), first_id=1)) == [4]


def test_hits_that_nobody_uses_are_taken_out_of_the_free_blocks() -> None:
    memory = PagedMemory(num_blocks=3, block_size=4)
    admit(memory, group_of(list(range(8))))
    memory.free(0)
    admit(memory, group_of([99], first_id=1))
    assert memory.usage().cached == 8
    assert not memory.can_admit(group_of(list(range(9)), first_id=2))


def test_without_the_cache_nothing_is_kept() -> None:
    memory = PagedMemory(num_blocks=4, block_size=4, prefix_cache=False)
    admit(memory, group_of(list(range(9))))
    memory.free(0)
    assert memory.usage().cached == 0


def test_a_recomputed_group_shares_the_full_blocks_of_its_prompt() -> None:
    memory = PagedMemory(num_blocks=8, block_size=4, prefix_cache=False)
    group = group_of([1] * 6, (7, 8, 9), (5,))
    assert admit(memory, group) == [0, 4]
    assert memory.block_table(0) == (0, 1, 2)
    assert memory.block_table(1) == (0, 3)
