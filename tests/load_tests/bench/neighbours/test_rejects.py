"""What `rejects` counts and shows."""

import pytest

from load_tests.bench.neighbours import rejects
from load_tests.bench.neighbours.bad_sender import BadAnswer
from load_tests.bench.neighbours.fillings import LargeRequest
from load_tests.bench.neighbours.rejects import RejectFigures
from load_tests.bench.neighbours.watch import Window

FIGURES = RejectFigures(
    small=(2.0, 19.5),
    large=(80.0, 240.0),
    slowest={"the worst": 300.0, "the next": 200.0},
    beside=(4.0, 33.0),
    lag=(10.0, 90.0, 95.0),
    gaps=(40.0, 42.0),
    ratios=(1.0, 1.1),
    num_bad=1000,
    wrong=("a: 500",),
    num_good=30,
    faults=("cut off",),
)


def test_all_that_is_promised_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rejects._show(FIGURES)
    shown = capsys.readouterr().out
    for text in (
        "2.0 / 19.5", "80.0 / 240.0", "4.0 / 33.0", "10.0 / 90.0", "95.0", "40.0 / 42.0", "1.05",
        "1.00, 1.10", "1000, 1", "30, 1", "300.0 ms: the worst", "a: 500", "cut off",
    ):  # fmt: skip
        assert text in shown
    assert rejects._headline(FIGURES).startswith(
        "refused p99 19.5 ms (64 kB), 240 ms (4 MiB), /live p99.9 95 ms, good gaps p99 1.05x"
    )


def test_turns_are_summed_up_by_kind_and_by_round() -> None:
    turns = rejects._Turns([Window(gaps_s=[0.5] * 50), Window(gaps_s=[0.75] * 50)])
    assert (turns.gap_ms(0), turns.gap_ms(1), turns.gap_ms()) == (500.0, 750.0, 750.0)


def test_the_slowest_answer_of_each_body_has_its_name() -> None:
    requests = [LargeRequest(name=name, path="/", body=b"") for name in "ab"]
    seen = [
        BadAnswer(number, 400, seconds, True) for number, seconds in ((0, 1.0), (1, 3.0), (0, 2.0))
    ]
    assert rejects._slowest(requests, seen) == {"a": 1000.0, "b": 3000.0}
    assert rejects._two(seen) == (2000.0, 2000.0)
