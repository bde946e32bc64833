import argparse
from collections import Counter
from itertools import pairwise

import pytest

from load_tests.monitoring.page_cost import (
    AGAIN,
    NONE,
    PageTurn,
    add_arguments,
    compare,
    cpu_rows,
    num_steps,
    order,
)

SOME = "8 viewers"


def turn(index: int, kind: str, step_ms: float, **cpu: float) -> PageTurn:
    return PageTurn(
        kind=kind, round=index, step_ms=step_ms, frames_per_s=0.0, frame_kib=0.0, cpu=cpu
    )


def test_turns_are_compared_within_rounds() -> None:
    """A machine that gets slower from round to round changes no ratio."""
    drift = [10.0, 12.0, 20.0, 50.0]
    turns = [turn(index, NONE, value) for index, value in enumerate(drift)]
    turns += [turn(index, SOME, 1.01 * value) for index, value in enumerate(drift)]
    turns += [turn(index, AGAIN, value) for index, value in enumerate(drift)]
    assert compare(turns, SOME).ratio == pytest.approx(1.01)
    assert compare(turns, AGAIN).ratio == 1.0


def test_each_kind_of_turn_has_each_place_as_often() -> None:
    places = Counter(
        (kind, place) for index in range(12) for place, kind in enumerate(order(index, SOME))
    )
    assert set(places.values()) == {4}
    # and comes after each other one as often
    pairs = Counter(pair for index in range(12) for pair in pairwise(order(index, SOME)))
    assert set(pairs.values()) == {4}


def test_processes_are_listed_with_what_they_took_without_viewers_and_with() -> None:
    turns = [turn(0, NONE, 1.0, scheduler=0.2, raylet=0.0002), turn(0, SOME, 1.0, scheduler=0.3)]
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
