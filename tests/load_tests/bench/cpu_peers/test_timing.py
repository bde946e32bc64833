import pytest

from load_tests.bench.cpu_peers.timing import Timing, speed, timed


def test_speed_is_the_median_of_the_repeats_with_their_spread() -> None:
    measured = speed(100, [Timing(1.0, 0.5), Timing(2.0, 1.0), Timing(10.0, 2.0)])
    assert (measured.median, measured.low, measured.high) == (50.0, 10.0, 100.0)
    assert measured.cpu_median == 100.0


def test_cpu_time_of_the_work_is_counted() -> None:
    timing = timed(lambda: sum(range(1_000_000)))
    assert timing.wall_s > 0
    assert timing.cpu_s > 0
    assert timed(lambda: None).cpu_s == pytest.approx(0, abs=timing.cpu_s)
