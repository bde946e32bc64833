import argparse
from typing import Any

import promql_parser
import pytest

from load_tests.monitoring.counters import add_arguments, count, vllm_board
from load_tests.monitoring.prometheus import Found

NAMES = ("pagoda_steps_total", "pagoda_e2e_seconds_sum")


class Answers:
    """A Prometheus that has two counters of two replicas, of which one went back."""

    def __init__(self, num_resets: int) -> None:
        self.num_resets = num_resets

    def values(self, expression: str) -> list[Found]:
        promql_parser.parse(expression)
        if expression.startswith("count by (__name__)"):
            return [self._found(2.0, __name__=name) for name in NAMES]
        if expression.startswith("count by (replica)"):
            return [self._found(1.0, replica=tag) for tag in "ab"]
        if expression.startswith("resets"):
            went_back = self.num_resets if NAMES[0] in expression else 0
            return [self._found(0.0), self._found(went_back)]
        if expression.startswith("min_over_time"):
            return [self._found(1.5), self._found(0.25)]
        return [self._found(20.0 if expression.startswith("count_over_time(up") else 19.0)]

    def _found(self, value: float, **labels: str) -> Found:
        return Found(labels=labels, times_s=(1.0,), values=(value,))


@pytest.mark.parametrize("num_resets", [0, 3])
def test_what_went_back_is_counted_over_all_series(num_resets: int) -> None:
    answers: Any = Answers(num_resets)
    counted = count(answers, 600)
    assert (counted.names, counted.series, counted.replicas) == (2, 4, 2)
    assert (counted.resets, counted.lowest_rate) == (num_resets, 0.25)
    assert (counted.scrapes, counted.missed) == (19, 1)


def test_the_board_for_vllm_is_in_promql() -> None:
    expressions = vllm_board()
    assert len(set(expressions)) == len(expressions) == 27
    for expression in expressions:
        promql_parser.parse(expression)


def test_the_options_have_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([])
    assert (args.ingresses, args.engines, args.duration_s) == (2, 2, 600.0)
