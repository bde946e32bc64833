"""What the table of `overload` says of the answers."""

import pytest

from load_tests.overload.asking import REFUSED, Outcome
from load_tests.overload.command import OverloadFigures, figures_of

PROBE = Outcome(key="a", sent_s=50.0, end_s=51.5)


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
    # 20 tokens in the 10 seconds until the last whole answer
    assert found.goodput == 2.0


def test_shares_are_those_of_the_time_when_both_keys_wait() -> None:
    # before the last two thirds of the arrivals, and behind them, nothing counts
    early = [whole("a", 0.0, 1.0, num_tokens=900)]
    late = [whole("a", 30.0, 5.0, num_tokens=900)]
    between = [whole("a", 10.0, 2.0, 25), whole("b", 10.0, 3.0, 75)]
    assert figures(*early, *between, *late).shares == (0.25, 0.75)


def test_nothing_is_asked_for_without_answers() -> None:
    found = figures(refused(0.0, 0.01))
    assert (found.num_whole, found.goodput, found.shares) == (0, 0.0, ())
