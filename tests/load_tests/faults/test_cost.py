import argparse

import pytest

from load_tests.faults.cost import CheckoutTurn, add_arguments, compare


def turn(value: float, *, is_other: bool) -> CheckoutTurn:
    return CheckoutTurn(
        is_other=is_other, tokens_per_s=value, itl_p99_ms=2 * value, cpu_us_per_token=3 * value
    )


def test_medians_of_both_checkouts_are_compared() -> None:
    turns = [turn(value, is_other=True) for value in (90.0, 100.0, 500.0)]
    turns += [turn(value, is_other=False) for value in (1.0, 99.0, 110.0)]
    assert compare(turns) == [
        ("tokens/s", "100.0", "99.0", "0.990"),
        ("between tokens, p99, ms", "200.0", "198.0", "0.990"),
        ("CPU us/token", "300.0", "297.0", "0.990"),
    ]


def test_the_other_checkout_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--other", "before"]).turns == 3
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "--other" in capsys.readouterr().err
