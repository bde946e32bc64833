from dataclasses import replace

import pytest

from load_tests.paper.runners.validation import (
    PairedRun,
    batches,
    batches_over_time,
    step_errors,
    validate,
)
from tests.load_tests.paper.runners.example_run import example_run


class _Second:
    def seconds(self, work: object) -> float:
        return 1.0


def test_a_step_that_is_launched_counts_with_the_one_before() -> None:
    run = example_run(1.0)
    first, second, third = (
        replace(step, step_s=seconds, num_prompt_tokens=num_tokens)
        for step, seconds, num_tokens in zip(run.steps, (1.0, 1.9, 0.1), (0, 8, 9), strict=False)
    )
    run = replace(run, steps=(first, second, third))
    errors = step_errors(PairedRun(run, run, _Second()))
    assert errors == pytest.approx([0.0, 100 * 0.9 / 1.9, 900.0])
    assert step_errors(PairedRun(run, run, _Second(), 9)) == [0.0] * 3


def test_deviations_are_in_percent_of_the_engine() -> None:
    slow, fast = example_run(1.0), example_run(0.5)
    assert step_errors(PairedRun(slow, slow, _Second())) == [0.0] * 10
    assert step_errors(PairedRun(fast, fast, _Second())) == [100.0] * 20
    pair = PairedRun(slow, fast, _Second())
    rows = {row.quantity: row for row in validate([pair])}
    rate = rows["rate sustained, req/s"]
    assert rate.percent == pytest.approx(100.0)
    assert rate.verdict == "outside"
    assert rows["sequences in the batch"].verdict == "inside"
    assert rows["the same over time, mean distance"].verdict == ""


def test_batches_are_means_over_spans_of_time() -> None:
    run = example_run(1.0)
    expected = [0.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0]
    assert batches(run, 0.0, 10.0) == expected
    (drawn,) = batches_over_time([PairedRun(run, example_run(0.5), _Second())])
    assert (drawn.engine, drawn.end_s) == (expected, 10.0)
