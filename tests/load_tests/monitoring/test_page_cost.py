import argparse

import pytest

from load_tests.monitoring.page_cost import (
    NONE,
    PageTurn,
    add_arguments,
    compare,
    cpu_rows,
    mean_step_s,
)

SOME = "8 viewers"


def turn(kind: str, **cpu: float) -> PageTurn:
    return PageTurn(kind=kind, step_ms=1.0, work_ms=1.0, frames_per_s=0.0, frame_kib=0.0, cpu=cpu)


def test_turns_are_compared_with_those_around_them() -> None:
    """A machine that gets slower from turn to turn changes no ratio."""
    drift = [10.0 + index for index in range(9)]
    values = [value * (1.01 if index % 2 else 1.0) for index, value in enumerate(drift)]
    looked, equals = compare(values)
    assert (looked.low, looked.high) == pytest.approx((1.01, 1.01))
    assert (equals.low, equals.high) == pytest.approx((1.0, 1.0))


def test_one_turn_in_which_others_compute_changes_little() -> None:
    values = [10.0] * 21
    values[8] = 30.0
    looked, equals = compare(values)
    assert looked.ratio == equals.ratio == 1.0


def test_processes_are_listed_with_what_they_took_without_viewers_and_with() -> None:
    turns = [turn(NONE, scheduler=0.2, raylet=0.0002), turn(SOME, scheduler=0.3)]
    assert cpu_rows(turns, SOME) == [("scheduler", "0.200", "0.300")]


def scraped(seconds: float, count: float) -> str:
    return (
        "# TYPE pagoda_inter_token_seconds histogram\n"
        'pagoda_inter_token_seconds_bucket{replica="a",le="0.5"} 3\n'
        f'pagoda_inter_token_seconds_sum{{replica="a"}} {seconds}\n'
        f'pagoda_inter_token_seconds_count{{replica="a"}} {count}\n'
        'pagoda_inter_token_seconds_sum{replica="b"} 1\n'
        'pagoda_inter_token_seconds_count{replica="b"} 9\n'
    )


def test_the_time_of_a_step_is_the_mean_that_engines_have_measured_meanwhile() -> None:
    assert mean_step_s(scraped(2.0, 10), scraped(5.0, 40)) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no steps"):
        mean_step_s(scraped(2.0, 10), scraped(2.0, 10))


def test_the_options_have_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([])
    assert (args.viewers, args.hz, args.device, args.proxy) == (8, 2.0, "cpu", None)
