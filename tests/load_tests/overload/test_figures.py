"""What the table of `overload` says of the answers."""

import pytest

from load_tests.overload.asking import REFUSED, Outcome
from load_tests.overload.figures import (
    OverloadFigures,
    cpu_of_refusals,
    figures_of,
    tokens_between,
)

PROBE = Outcome(key="c", sent_s=50.0, end_s=51.5)


def whole(key: str, sent_s: float, wait_s: float, num_tokens: int = 10) -> Outcome:
    return Outcome(
        key=key,
        sent_s=sent_s,
        status=200,
        first_s=sent_s + wait_s,
        end_s=sent_s + wait_s + 1.0,
        num_tokens=num_tokens,
        is_whole=True,
    )


def refused(sent_s: float, wait_s: float) -> Outcome:
    return Outcome(key="a", sent_s=sent_s, status=REFUSED, end_s=sent_s + wait_s)


def figures(*outcomes: Outcome) -> OverloadFigures:
    return figures_of(list(outcomes), PROBE, capacity=100.0, queue_s=30.0)


def test_answers_are_counted_by_kind() -> None:
    cut = Outcome(key="a", sent_s=1.0, status=200, num_tokens=3, end_s=2.0)
    failed = Outcome(key="a", sent_s=1.0, end_s=2.0)
    found = figures(
        whole("a", 0.0, 1.0), whole("b", 1.0, 8.0), refused(2.0, 0.01), refused(3.0, 29.0), cut,
        failed,
    )  # fmt: skip
    counts = (found.num_whole, found.num_refused, found.num_expired, found.num_other)
    assert counts == (2, 1, 1, 2)
    assert found.first_token_s == (4.5, 8.0)
    assert list(found.refusal_s) == pytest.approx([0.01, 0.01])
    assert found.probe_s == 1.5


def test_goodput_is_that_of_whole_answers_while_the_queue_is_full() -> None:
    # from 10 s, a third of the arrivals, to 30 s; of the second answer half comes before
    again = Outcome(key="a", sent_s=60.0, is_again=True, status=REFUSED, end_s=60.1)
    cut = Outcome(key="a", sent_s=11.0, status=200, first_s=12.0, num_tokens=50, end_s=13.0)
    early, late = whole("a", 0.0, 2.0, 500), whole("a", 28.0, 9.0, 500)
    found = figures(
        early,
        whole("a", 1.0, 8.5, 80),
        whole("b", 20.0, 2.0, 40),
        cut,
        late,
        again,
        refused(30.0, 0.1),
    )
    assert found.goodput == pytest.approx((40 + 40) / 20)


def test_tokens_of_an_answer_come_evenly() -> None:
    answer = whole("a", 0.0, 4.0, 100)
    assert tokens_between([answer], 4.25, 4.5) == pytest.approx(25)
    assert tokens_between([answer], 0.0, 4.0) == 0
    assert tokens_between([refused(1.0, 1.0)], 0.0, 9.0) == 0


def test_refusals_cost_what_answers_do_not() -> None:
    found = cpu_of_refusals(
        {"proxy": 2.0, "worker": 8.0},
        100,
        {"proxy": 3.5, "worker": 7.2, "client": 0.5},
        90,
        num=500,
    )
    assert found["proxy"] == pytest.approx((20.0, 3.4))
    assert found["worker"] == pytest.approx((80.0, 0.0))
    assert found["client"] == pytest.approx((0.0, 1.0))


def test_shares_are_those_of_the_time_when_both_keys_wait() -> None:
    # before the last two thirds of the arrivals, and behind them, nothing counts
    early = [whole("a", 0.0, 1.0, num_tokens=900)]
    late = [whole("a", 30.0, 5.0, num_tokens=900)]
    between = [whole("a", 10.0, 2.0, 25), whole("b", 10.0, 3.0, 75)]
    assert figures(*early, *between, *late).shares == (0.25, 0.75)


def test_nothing_is_asked_for_without_answers() -> None:
    found = figures(refused(0.0, 0.01))
    assert (found.num_whole, found.goodput, found.shares) == (0, 0.0, ())
