"""All ranks execute the same plans, so the least of them counts."""

from dataclasses import replace

from engine.executor.common_capacity import common_capacity
from engine.types import Capacity, int64

CAPACITY = Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.3)


def test_the_smallest_of_each_pool_and_the_slowest_rank_count() -> None:
    ranks = [
        Capacity(num_blocks=9, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.1),
        Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=5, block_copy_s=0.3),
    ]
    assert common_capacity(ranks) == CAPACITY


def test_a_slot_is_kept_if_it_holds_the_same_on_all_ranks() -> None:
    same, other, nothing = int64([1, 2, 3, 4]), int64([1, 2, 3, 5]), int64([0] * 4)
    ranks = [replace(CAPACITY, swap_keys=keys) for keys in (same + same, same + other)]
    assert common_capacity(ranks).swap_keys == same + nothing
    # on one of them nothing was written yet
    assert not common_capacity([ranks[0], CAPACITY]).swap_keys
