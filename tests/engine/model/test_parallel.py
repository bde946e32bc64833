"""Which part of a model each rank holds, and how ranks find each other."""

import pytest

from engine.errors import ConfigError
from engine.model.parallel import TensorParallel


def spans(count: int, size: int, **settings: int) -> list[tuple[int, int]]:
    """Where the rows of each rank begin and end."""
    ranks = (TensorParallel(rank, size) for rank in range(size))
    found = (rank.span(count, "rows", **settings) for rank in ranks)
    return [(span.start, span.stop) for span in found]


def test_rows_are_split_in_the_order_of_the_ranks() -> None:
    assert spans(12, 3) == [(0, 4), (4, 8), (8, 12)]
    with pytest.raises(ConfigError, match=r"rows \(12\) .* tensor_parallel_size=5"):
        spans(12, 5)


def test_a_rank_holds_the_key_value_heads_of_its_queries() -> None:
    # 8 rows are 4 heads of 2 rows, or 2 heads of 4, or one of 8
    assert spans(8, 2, num_heads=4) == [(0, 4), (4, 8)]
    assert spans(8, 4, num_heads=2) == [(0, 4), (0, 4), (4, 8), (4, 8)]
    assert spans(8, 3, num_heads=1) == [(0, 8)] * 3
