from engine.runtime.replica.gang import common_capacity
from engine.types import Capacity


def test_the_smallest_of_each_pool_and_the_slowest_rank_count() -> None:
    ranks = [
        Capacity(num_blocks=9, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.1),
        Capacity(num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=5, block_copy_s=0.3),
    ]
    assert common_capacity(ranks) == Capacity(
        num_blocks=8, block_size=4, num_rows=3, num_swap_blocks=2, block_copy_s=0.3
    )
