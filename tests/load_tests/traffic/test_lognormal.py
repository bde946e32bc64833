from statistics import fmean

import pytest

from load_tests.traffic.lognormal import TRACES, draw_pairs


@pytest.mark.parametrize("name", TRACES)
def test_traces_have_the_means_of_the_paper(name: str) -> None:
    pairs = draw_pairs(name, 1000, 0)
    inputs, outputs = TRACES[name]
    assert fmean(i for i, _ in pairs) == pytest.approx(inputs.mean, rel=0.05)
    assert fmean(o for _, o in pairs) == pytest.approx(outputs.mean, rel=0.05)
    assert max(i + o for i, o in pairs) <= 2048
    assert pairs == draw_pairs(name, 1000, 0) != draw_pairs(name, 1000, 1)


def test_unknown_traces_are_refused() -> None:
    with pytest.raises(ValueError, match="'x' is not one of sharegpt, alpaca"):
        draw_pairs("x", 1, 0)
