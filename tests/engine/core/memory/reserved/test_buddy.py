from hypothesis import given
from hypothesis import strategies as st

from engine.core.memory.reserved.buddy import BuddyAllocator, chunk_size

REQUESTS = st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 99)), max_size=80)


def _starts(buddy: BuddyAllocator, num_chunks: int, num_blocks: int) -> list[int]:
    return [buddy.allocate(num_blocks) for _ in range(num_chunks)]


@given(num_blocks=st.integers(1, 300), requests=REQUESTS)
def test_chunks_never_overlap_are_aligned_and_merge_back(
    num_blocks: int, requests: list[tuple[bool, int, int]]
) -> None:
    buddy = BuddyAllocator(num_blocks, 64)
    held: list[tuple[int, int]] = []
    for is_free, size, which in requests:
        if is_free and held:
            buddy.free(*held.pop(which % len(held)))
        elif buddy.can_allocate(1, size):
            held.append((buddy.allocate(size), size))
        blocks = [b for start, n in held for b in range(start, start + chunk_size(n))]
        assert len(blocks) == len(set(blocks))
        assert all(0 <= block < num_blocks for block in blocks)
        assert all(start % chunk_size(n) == 0 for start, n in held)
        assert buddy.num_free == num_blocks - len(blocks)
    for start, size in held:
        buddy.free(start, size)
    # whole again: every chunk of the first carving can be taken, largest first
    fresh = BuddyAllocator(num_blocks, 64)
    for size in (64, 32, 16, 8, 4, 2, 1):
        while fresh.can_allocate(1, size):
            assert buddy.can_allocate(1, size)
            fresh.allocate(size)
            buddy.allocate(size)
    assert buddy.num_free == 0


@given(
    held=st.lists(st.integers(1, 40), max_size=12), count=st.integers(1, 9), size=st.integers(1, 40)
)
def test_chunks_can_be_allocated_exactly_if_it_is_said_so(
    held: list[int], count: int, size: int
) -> None:
    buddy = BuddyAllocator(200, 64)
    for n in held:
        if buddy.can_allocate(1, n):
            buddy.allocate(n)
    fits = buddy.can_allocate(count, size)
    taken = 0
    while taken < count and buddy.can_allocate(1, size):
        buddy.allocate(size)
        taken += 1
    assert fits == (taken == count)


def test_the_paper_pool_is_carved_into_seven_of_128_and_a_rest() -> None:
    buddy = BuddyAllocator(981, 128)
    assert buddy.can_allocate(7, 128)
    assert not buddy.can_allocate(8, 128)
    _starts(buddy, 7, 128)
    assert buddy.num_free == 85
    assert [buddy.can_allocate(1, size) for size in (65, 64)] == [False, True]


def test_the_chunk_freed_last_is_handed_out_first() -> None:
    buddy = BuddyAllocator(64, 16)
    first, second, _ = _starts(buddy, 3, 16)
    buddy.free(second, 16)
    buddy.free(first, 16)
    assert _starts(buddy, 2, 16) == [first, second]


def test_sizes_round_up_to_powers_of_two() -> None:
    assert [chunk_size(n) for n in (1, 2, 3, 4, 5, 127, 128)] == [1, 2, 4, 4, 8, 128, 128]
