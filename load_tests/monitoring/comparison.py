"""The same figures of one load, as its clients and as Prometheus have them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from load_tests.http.client import Record

# by how much Prometheus and clients may differ
ALLOWED = 0.03
# share of a load at its beginning and end that is left out of the rate of tokens
_RAMP_SHARE = 0.15

# the value of an expression at a time, in seconds since the epoch
Ask = Callable[[str, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure, as clients and as Prometheus have it."""

    name: str
    expression: str
    client: float
    prometheus: float

    @property
    def difference(self) -> float:
        """Share of the client's figure by which Prometheus's is larger."""
        return self.prometheus / self.client - 1

    @property
    def is_close(self) -> bool:
        """Whether both say the same."""
        return abs(self.difference) <= ALLOWED


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What clients have measured of a load.

    Attributes:
        first_s: mean time to the first token.
        gap_s: mean time between two tokens.
        whole_s: mean time of a request.
        num_tokens: of all answers.
        load_s: from the first request's begin to the last one's end.
    """

    first_s: float
    gap_s: float
    whole_s: float
    num_tokens: float
    load_s: float


def compare(ask: Ask, records: Sequence[Record], start_s: float, end_s: float) -> list[Compared]:
    """Compare means of a load, and its rate of tokens.

    Args:
        records: of all its requests, none of which failed.
        start_s, end_s: since the epoch, while it began and when its last request was scraped.
    """
    gaps_s = sum(record.chunk_s[-1] - record.chunk_s[0] for record in records)
    num_gaps = sum(record.num_tokens - record.chunk_tokens[0] for record in records)
    means = Means(
        first_s=_mean([record.chunk_s[0] - record.sent_s for record in records]),
        gap_s=gaps_s / num_gaps,
        whole_s=_mean([record.chunk_s[-1] - record.sent_s for record in records]),
        num_tokens=sum(record.num_tokens for record in records),
        load_s=max(record.chunk_s[-1] for record in records),
    )
    return [*_latencies(ask, means, start_s, end_s), _token_rate(ask, records, start_s)]


def compare_means(ask: Ask, means: Means, start_s: float, end_s: float) -> list[Compared]:
    """The same of a load of which no more is known; see `compare`."""
    tokens, over = "pagoda_generated_tokens_total", round(1000 * (end_s - start_s))
    expression = f"(sum({tokens}) - sum({tokens} offset {over}ms)) / {means.load_s:.3f}"
    rate = Compared(
        name="tokens/s",
        expression=expression,
        client=means.num_tokens / means.load_s,
        prometheus=ask(expression, end_s),
    )
    return [*_latencies(ask, means, start_s, end_s), rate]


def _latencies(ask: Ask, means: Means, start_s: float, end_s: float) -> list[Compared]:
    window = f"[{round(1000 * (end_s - start_s))}ms]"
    wanted = [
        ("first token, mean s", "time_to_first_token_seconds", means.first_s),
        ("between tokens, mean s", "inter_token_seconds", means.gap_s),
        ("request, mean s", "e2e_seconds", means.whole_s),
    ]
    found = []
    for name, metric, client in wanted:
        total, count = (f"sum(increase(pagoda_{metric}_{it}{window}))" for it in ("sum", "count"))
        expression = f"{total} / {count}"
        value = ask(expression, end_s)
        found.append(Compared(name=name, expression=expression, client=client, prometheus=value))
    return found


def _token_rate(ask: Ask, records: Sequence[Record], start_s: float) -> Compared:
    """Tokens per second in the middle of the load, where all is in flight that may be."""
    over_s = max(record.chunk_s[-1] for record in records)
    low_s, high_s = _RAMP_SHARE * over_s, (1 - _RAMP_SHARE) * over_s
    num_tokens = sum(
        count
        for record in records
        for at_s, count in zip(record.chunk_s, record.chunk_tokens, strict=True)
        if low_s < at_s <= high_s
    )
    expression = f"sum(rate(pagoda_generated_tokens_total[{round(1000 * (high_s - low_s))}ms]))"
    return Compared(
        name="tokens/s",
        expression=expression,
        client=num_tokens / (high_s - low_s),
        prometheus=ask(expression, start_s + high_s),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
