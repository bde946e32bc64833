"""What `overload` shows."""

import pytest

from load_tests.overload import command
from load_tests.overload.figures import OverloadFigures

FIGURES = OverloadFigures(
    capacity=1000.0,
    goodput=960.0,
    num_whole=600,
    num_refused=1200,
    num_expired=3,
    num_other=0,
    num_computed=600,
    first_token_s=(12.0, 29.0),
    refusal_s=(0.002, 0.011),
    probe_s=0.9,
    shares=(0.25, 0.75),
    cpu_ms={"proxy": (1.0, 0.2), "worker": (50.0, -0.1), "idle": (0.0, 0.0)},
)


def test_all_that_is_promised_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    command._show(FIGURES, 30.0)
    shown = capsys.readouterr().out
    for text in ("0.96", "600, 1200, 3", "12.000 / 29.000", "0.002 / 0.011", "0.25 : 0.75"):
        assert text in shown
    assert "worker" in shown
    assert "idle" not in shown
    assert "goodput 0.96 of capacity" in command._headline(FIGURES)
