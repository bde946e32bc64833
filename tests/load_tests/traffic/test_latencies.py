from dataclasses import asdict

import pytest

from load_tests.traffic.latencies import Objective, Served, summarise
from load_tests.traffic.schedule import TimedRequest


def test_percentiles_interpolate_between_neighbours() -> None:
    summary = summarise([40.0, 0.0, 10.0])
    assert summary is not None
    expected = {"mean": 50 / 3, "p50": 10.0, "p90": 34.0, "p99": 39.4, "max": 40.0}
    assert asdict(summary) == pytest.approx(expected)
    assert summarise([]) is None


def test_a_request_is_good_when_it_keeps_both_limits() -> None:
    request = TimedRequest(due_s=1.0, input_len=4, output_len=3)
    served = Served(request=request, first_token_s=2.0, finish_s=4.0)
    assert Objective(ttft_s=1.0, tpot_s=1.0).is_kept(served)
    assert not Objective(ttft_s=0.9, tpot_s=1.0).is_kept(served)
    assert not Objective(ttft_s=1.0, tpot_s=0.9).is_kept(served)
    assert Objective(ttft_s=float("inf"), tpot_s=0.1).limits() == {"ttft_s": None, "tpot_s": 0.1}
