import argparse

import pytest

from load_tests.monitoring.page_cost import (
    NONE,
    PageTurn,
    add_arguments,
    compare,
    cpu_rows,
    num_steps,
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


def test_steps_of_all_kinds_and_replicas_are_counted() -> None:
    text = (
        "# TYPE pagoda_steps_total counter\n"
        'pagoda_steps_total{replica="a",kind="decode"} 5\n'
        'pagoda_steps_total{replica="b",kind="mixed"} 2\n'
        "# TYPE pagoda_step_seconds histogram\n"
        'pagoda_step_seconds_count{replica="a"} 9\n'
    )
    assert num_steps(text) == 7


def test_the_options_have_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([])
    assert (args.viewers, args.hz, args.device, args.proxy) == (8, 2.0, "cpu", None)
