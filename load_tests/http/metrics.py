"""From records to figures: latencies from the scheduled time, rates, goodput, validity."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from load_tests.http.client import UNFINISHED, Record
from load_tests.http.drive import LoadRun
from load_tests.traffic.latencies import Objective, Summary, latencies, summarise

# a client that sends later than this has measured itself
MAX_LAG_S = 0.05
# a Python client that is busier than this shapes the times it reports
MAX_CLIENT_CPU_SHARE = 0.7
# share of the arrival window that is left out of the steady rate, while the batch fills
RAMP_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """What a run gave; distributions are None when nothing was there to measure.

    Attributes:
        num_requests: sent; `num_finished` + `num_unfinished` + the errors.
        errors: requests by kind of failure.
        norm_latency_s: end to end / output tokens, per request (paper, section 6.1).
        ttft_s, tpot_s, e2e_s: see `Served`.
        itl_s: between tokens, of all requests; a chunk of n tokens has one gap and n - 1 of zero.
        chunk_gap_s, chunk_tokens: between chunks, and their sizes: what a reader sees.
        makespan_s: start to the last token.
        output_tokens_per_s: over the makespan, ramp and drain included.
        steady_output_tokens_per_s: over the arrivals without their first tenth, without the drain.
        goodput_requests_per_s: requests within the objective per second of the makespan.
        good_share: requests within the objective of all that were sent.
        client_lag_s: scheduled to sent.
        client_cpu_share: CPU seconds of the client per second.
        invalid: why the client itself spoiled the figures, or None.
    """

    num_requests: int
    num_finished: int
    num_unfinished: int
    errors: dict[str, int]
    norm_latency_s: Summary | None
    ttft_s: Summary | None
    tpot_s: Summary | None
    itl_s: Summary | None
    chunk_gap_s: Summary | None
    chunk_tokens: Summary | None
    e2e_s: Summary | None
    makespan_s: float
    offered_requests_per_s: float
    output_tokens_per_s: float
    steady_output_tokens_per_s: float
    goodput_requests_per_s: float
    good_share: float
    client_lag_s: Summary | None
    client_cpu_share: float
    invalid: str | None


def all_latencies(records: Sequence[Record]) -> dict[str, list[float]]:
    """Seconds by kind of latency, of the requests that finished."""
    served = [record.served for record in records if record.error is None]
    norm = [value for one in served if (value := one.normalized_latency_s) is not None]
    return {"norm_latency_s": norm, **latencies(served)}


def token_gaps_s(record: Record) -> list[float]:
    """Seconds from token to token; a chunk of n tokens is one real gap and n - 1 of zero."""
    gaps = [0.0] * (record.chunk_tokens[0] - 1)
    for gap, num_tokens in zip(chunk_gaps_s(record), record.chunk_tokens[1:], strict=True):
        gaps += [gap] + [0.0] * (num_tokens - 1)
    return gaps


def chunk_gaps_s(record: Record) -> list[float]:
    """Seconds between one chunk and the next: what a reader of the stream sees."""
    return [after - before for before, after in pairwise(record.chunk_s)]


def measure(run: LoadRun, objective: Objective) -> LoadFigures:
    """Compute every figure of a run.

    Requests that failed or did not finish are counted by kind and left out of the latencies; the
    token rates count every token that arrived.
    """
    records = run.records
    finished = [record for record in records if record.error is None]
    good = sum(objective.is_kept(record.served) for record in finished)
    lag = summarise([record.sent_s - record.request.due_s for record in records])
    errors = Counter(record.error for record in records if record.error is not None)
    last_due_s = max((record.request.due_s for record in records), default=0.0)
    end_s = max([last_due_s, *(r.chunk_s[-1] for r in records if r.chunk_s)])
    ramp_s = RAMP_SHARE * last_due_s
    summaries = {name: summarise(values) for name, values in all_latencies(records).items()}
    return LoadFigures(
        num_requests=len(records),
        num_finished=len(finished),
        num_unfinished=errors.pop(UNFINISHED, 0),
        errors=dict(sorted(errors.items())),
        itl_s=summarise([gap for r in finished for gap in token_gaps_s(r)]),
        chunk_gap_s=summarise([gap for r in finished for gap in chunk_gaps_s(r)]),
        chunk_tokens=summarise([n for r in finished for n in r.chunk_tokens]),
        makespan_s=end_s,
        offered_requests_per_s=_rate(len(records), last_due_s),
        output_tokens_per_s=_rate(_tokens_between(records, 0.0, end_s), end_s),
        steady_output_tokens_per_s=_rate(
            _tokens_between(records, ramp_s, last_due_s), last_due_s - ramp_s
        ),
        goodput_requests_per_s=_rate(good, end_s),
        good_share=good / max(1, len(records)),
        client_lag_s=lag,
        client_cpu_share=run.client_cpu_share,
        invalid=_why_invalid(lag, run.client_cpu_share),
        **summaries,
    )


def _rate(number: int, seconds: float) -> float:
    return number / seconds if seconds > 0 else 0.0


def _tokens_between(records: tuple[Record, ...], start_s: float, end_s: float) -> int:
    return sum(
        num_tokens
        for record in records
        for at_s, num_tokens in zip(record.chunk_s, record.chunk_tokens, strict=True)
        if start_s <= at_s <= end_s
    )


def _why_invalid(lag: Summary | None, client_cpu_share: float) -> str | None:
    if lag is None:
        return "no request was due"
    if lag.p99 > MAX_LAG_S:
        return f"client lag p99 {lag.p99 * 1e3:.0f} ms is above {MAX_LAG_S * 1e3:.0f} ms"
    if client_cpu_share > MAX_CLIENT_CPU_SHARE:
        return f"client CPU share {client_cpu_share:.2f} is above {MAX_CLIENT_CPU_SHARE}"
    return None
