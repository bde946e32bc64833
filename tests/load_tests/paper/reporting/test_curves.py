import pytest

from load_tests.paper.reporting.curves import SustainedRate, ratio, sustained


def test_a_rate_is_sustained_up_to_the_crossing_of_the_logarithms() -> None:
    assert sustained([(1, 0.1), (2, 0.1), (4, 0.9)], 0.3).rate_per_s == pytest.approx(3)
    assert sustained([(1, 0.1), (2, 0.3)], 0.3) == SustainedRate(2, ">")
    assert sustained([(1, 0.4), (2, 0.5)], 0.3) == SustainedRate(1, "<")


def test_a_ratio_of_bounds_is_a_bound() -> None:
    at_least, at_most, exact = SustainedRate(6, ">"), SustainedRate(6, "<"), SustainedRate(3)
    assert ratio(exact, exact) == (1, "=")
    assert ratio(at_least, exact) == (2, ">")
    assert ratio(exact, at_least) == (0.5, "<")
    assert ratio(exact, at_most) == (0.5, ">")
    assert ratio(at_least, at_most) == (1, ">")
    assert ratio(at_least, at_least) == (1, "?")
