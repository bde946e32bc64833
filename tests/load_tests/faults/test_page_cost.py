import argparse

import pytest

from load_tests.faults.page_cost import PageTurn, add_arguments, compare, steps_of


def turn(index: int, viewers: int, step_ms: float) -> PageTurn:
    return PageTurn(round=index, viewers=viewers, step_ms=step_ms, frames=0, frame_kib=0.0)


def test_turns_are_compared_within_rounds() -> None:
    """A machine that gets slower from round to round changes no ratio."""
    drift = [10.0, 12.0, 20.0, 50.0]
    turns = [turn(index, 0, value) for index, value in enumerate(drift)]
    turns += [turn(index, 8, 1.01 * value) for index, value in enumerate(drift)]
    assert compare(turns).ratio == pytest.approx(1.01)


def test_steps_of_all_kinds_and_replicas_are_counted() -> None:
    text = (
        "# TYPE pagoda_steps_total counter\n"
        'pagoda_steps_total{replica="a",kind="decode"} 5\n'
        'pagoda_steps_total{replica="b",kind="mixed"} 2\n'
        "# TYPE pagoda_step_seconds histogram\n"
        'pagoda_step_seconds_count{replica="a"} 9\n'
    )
    assert steps_of(text) == 7


def test_the_options_have_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([])
    assert (args.viewers, args.hz, args.device) == (8, 2.0, "cpu")
