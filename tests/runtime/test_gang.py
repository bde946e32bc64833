from engine.runtime.gang import common_capacity
from engine.types import Capacity


def test_the_smallest_of_each_pool_counts() -> None:
    ranks = [
        Capacity(num_blocks=9, block_size=4, num_rows=3, num_swap_slots=2),
        Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_slots=5),
    ]
    assert common_capacity(ranks) == Capacity(
        num_blocks=8, block_size=4, num_rows=3, num_swap_slots=2
    )
