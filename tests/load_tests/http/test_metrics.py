from array import array

import pytest

from load_tests.http import metrics
from load_tests.http.client import Record
from load_tests.http.drive import LoadRun
from load_tests.http.metrics import measure
from load_tests.traffic.latencies import Objective
from load_tests.traffic.schedule import TimedRequest


def record(
    due_s: float, chunks: list[tuple[float, int]], error: str | None = None, lag_s: float = 0.0
) -> Record:
    tokens = sum(number for _, number in chunks)
    return Record(
        request=TimedRequest(due_s=due_s, input_len=1, output_len=tokens),
        sent_s=due_s + lag_s,
        chunk_s=array("d", [at_s for at_s, _ in chunks]),
        chunk_tokens=array("i", [number for _, number in chunks]),
        error=error,
    )


def run(*records: Record, cpu: float = 0.1) -> LoadRun:
    return LoadRun(records=records, client_cpu_share=cpu, drain_s=1.0)


def test_latencies_count_from_the_scheduled_time() -> None:
    late = record(10.0, [(12.0, 1), (12.5, 1), (14.0, 2)], lag_s=1.0)
    assert metrics.all_latencies([late]) == {
        "norm_latency_s": [1.0],
        "ttft_s": [2.0],
        "tpot_s": [pytest.approx(2.0 / 3)],
        "e2e_s": [4.0],
    }


def test_a_chunk_of_n_tokens_is_one_gap_and_n_minus_1_of_zero() -> None:
    merged = record(0.0, [(1.0, 2), (3.0, 3)])
    assert metrics.token_gaps_s(merged) == [0.0, 2.0, 0.0, 0.0]
    assert metrics.chunk_gaps_s(merged) == [2.0]
    figures = measure(run(merged), Objective())
    assert figures.chunk_tokens is not None
    assert figures.chunk_tokens.max == 3


def test_a_single_token_has_no_time_per_further_token() -> None:
    figures = measure(run(record(0.0, [(0.5, 1)])), Objective())
    assert figures.tpot_s is None
    assert figures.good_share == 1.0


def test_goodput_counts_requests_that_kept_both_limits() -> None:
    good = record(0.0, [(1.0, 1), (1.5, 1)])
    slow_start = record(0.0, [(1.1, 1), (1.2, 1)])
    slow_tokens = record(0.0, [(0.5, 1), (1.1, 1)])
    cut = record(0.0, [(0.5, 1), (0.6, 1)], error="unfinished")
    figures = measure(run(good, slow_start, slow_tokens, cut), Objective(ttft_s=1.0, tpot_s=0.5))
    assert figures.good_share == 0.25
    assert figures.goodput_requests_per_s == pytest.approx(1 / 1.5)


def test_failed_and_unfinished_requests_are_counted_and_keep_out_of_latencies() -> None:
    figures = measure(
        run(
            record(0.0, [(1.0, 1), (2.0, 1)]),
            record(0.0, [(9.0, 1)], error="unfinished"),
            record(1.0, [], error="http_429"),
            record(1.0, [], error="http_429"),
        ),
        Objective(),
    )
    assert (figures.num_requests, figures.num_finished, figures.num_unfinished) == (4, 1, 1)
    assert figures.errors == {"http_429": 2}
    assert figures.ttft_s is not None
    assert figures.ttft_s.max == 1.0


def test_token_rates_count_every_token_and_the_steady_rate_leaves_out_ramp_and_drain() -> None:
    figures = measure(
        run(record(0.0, [(0.5, 5), (5.0, 8), (12.0, 7)]), record(10.0, [(20.0, 20)])), Objective()
    )
    assert figures.output_tokens_per_s == pytest.approx(40 / 20)
    assert figures.steady_output_tokens_per_s == pytest.approx(8 / 9)
    assert figures.offered_requests_per_s == pytest.approx(2 / 10)


@pytest.mark.parametrize(
    ("lag_s", "cpu", "reason"),
    [(0.06, 0.1, "lag p99 60 ms"), (0.0, 0.9, "CPU share"), (0, 0, None)],
)
def test_a_run_that_the_client_spoiled_is_invalid(
    lag_s: float, cpu: float, reason: str | None
) -> None:
    figures = measure(run(record(0.0, [(1.0, 1)], lag_s=lag_s), cpu=cpu), Objective())
    assert (figures.invalid is None) if reason is None else reason in (figures.invalid or "")


def test_a_run_without_requests_is_invalid_not_a_crash() -> None:
    assert measure(run(), Objective()).invalid == "no request was due"
