import pytest

from tests.load_tests.paper.runners.example_run import example_run


def test_tokens_in_the_window_give_the_rate() -> None:
    # steps that end at 2, ..., 9 s: four of two and four of three sequences
    expected = (4 * 2 + 4 * 3) / 8 / 5
    assert example_run(1.0).result.sustained_per_s == pytest.approx(expected)
