import argparse
from typing import Any

import pytest

from load_tests.monitoring.dead_collector import (
    OFF,
    CollectorTurn,
    add_arguments,
    compare,
    percentile,
    row,
    wrong,
)
from load_tests.monitoring.fake_collector import Mood

ALIVE, REFUSING, HANGING = (mood.value for mood in Mood)


def turn(kind: str, ms: float = 10.0, **fields: Any) -> CollectorTurn:
    numbers: dict[str, Any] = {
        "num_dropped": 0 if kind in (OFF, ALIVE) else 600,
        "num_batches": int(kind == ALIVE),
    }
    return CollectorTurn(kind=kind, ms=[ms, 2 * ms], **(numbers | fields))


def turns(**times: float) -> list[CollectorTurn]:
    """Two rounds on a machine that gets slower from turn to turn."""
    kinds = [kind for _ in range(2) for mood in (ALIVE, REFUSING, HANGING) for kind in (OFF, mood)]
    return [
        turn(kind, times.get(kind, 1.0) * (10.0 + place))
        for place, kind in enumerate([*kinds, OFF])
    ]


def test_percentiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (
        50.0, 99.0, 100.0,
    )  # fmt: skip
    assert percentile([3.0], 0.99) == 3.0


def test_turns_are_compared_with_those_without_traces_around_them() -> None:
    found = turns(hanging=1.5)
    assert compare(found, HANGING, "p99_ms").ratio == pytest.approx(1.5)
    assert compare(found, REFUSING, "p99_ms").ratio == pytest.approx(1.0)
    assert compare(found, OFF, "p50_ms").ratio == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [REFUSING, HANGING])
def test_a_dead_collector_that_loses_no_span_shows_nothing(kind: str) -> None:
    assert "no span was lost" in wrong([*turns(), turn(kind, num_dropped=0)])


@pytest.mark.parametrize("fields", [{"num_batches": 0}, {"num_dropped": 3}])
def test_one_that_is_alive_has_to_take_all(fields: dict[str, int]) -> None:
    assert wrong(turns()) == ""
    assert "alive" in wrong([*turns(), turn(ALIVE, **fields)])


def test_all_turns_of_a_kind_count_together() -> None:
    found = [turn(HANGING, 10.0), turn(OFF, 50.0), turn(HANGING, 30.0)]
    assert row(found, HANGING) == (HANGING, "4", "25.0", "60.0", "60.0", "1,200", "0")


def test_the_options_have_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([])
    assert (args.rounds, args.rate, args.device) == (7, 30.0, "cpu")
