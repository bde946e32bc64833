import argparse

import pytest

from load_tests.faults.cost import (
    AGAIN,
    OTHER,
    THIS,
    CheckoutTurn,
    add_arguments,
    compare,
    estimate,
)


def turns_of(server: str, values: list[float]) -> list[CheckoutTurn]:
    return [
        CheckoutTurn(
            server=server,
            round=index,
            tokens_per_s=value,
            itl_p99_ms=2 / value,
            cpu_us_per_token=3.0,
        )
        for index, value in enumerate(values)
    ]


def test_servers_are_compared_within_rounds() -> None:
    """A machine that gets slower from round to round changes no ratio."""
    drift = [100.0, 80.0, 50.0, 20.0]
    turns = turns_of(OTHER, drift)
    turns += turns_of(THIS, [0.95 * value for value in drift])
    turns += turns_of(AGAIN, [0.95 * value for value in reversed(drift)])[::-1]
    rows, verdicts = compare(turns)
    assert [row[:4] for row in rows] == [
        ("tokens/s", "65.0", "61.8", "0.950 (0.950 to 0.950)"),
        ("between tokens, p99, ms", "0.0", "0.0", "1.053 (1.053 to 1.053)"),
        ("CPU us/token", "3.0", "3.0", "1.000 (1.000 to 1.000)"),
    ]
    ends = [verdict.rsplit(": ", 1)[1] for verdict in verdicts]
    assert ends == ["more than 2 % lost", "more than 2 % lost", "at most 2 % lost"]


def test_what_chance_may_have_made_is_not_shown() -> None:
    turns = turns_of(OTHER, [100.0] * 5) + turns_of(AGAIN, [100.0] * 5)
    turns += turns_of(THIS, [90.0, 95.0, 100.0, 105.0, 110.0])
    _, verdicts = compare(turns)
    assert verdicts[0].endswith("not shown")


def test_an_interval_holds_the_median_and_gets_narrower_with_more_rounds() -> None:
    few, many = estimate([0.9, 1.0, 1.1]), estimate([0.9, 1.0, 1.1] * 100)
    assert (few.low, few.ratio, few.high) == (0.9, 1.0, 1.1)
    assert (many.low, many.ratio, many.high) == (1.0, 1.0, 1.0)


def test_the_other_checkout_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--other", "before"]).rounds == 16
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "--other" in capsys.readouterr().err
