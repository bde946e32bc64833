import pytest

from load_tests.parallel import as_done, in_order


@pytest.mark.parametrize("num_processes", [1, 2])
def test_results_come_in_the_order_of_the_items(num_processes: int) -> None:
    assert in_order(abs, [-3, 2, -1], num_processes) == [3, 2, 1]
    assert dict(as_done(abs, [-3, 2, -1], num_processes)) == {0: 3, 1: 2, 2: 1}


def test_an_error_is_the_caller_s() -> None:
    with pytest.raises(ValueError, match="negative"):
        in_order(_root, [4.0, -1.0], 2)


def _root(of: float) -> float:
    if of < 0:
        raise ValueError("negative")
    return float(of**0.5)
