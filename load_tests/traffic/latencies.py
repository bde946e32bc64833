"""Latencies of requests, counted from the time each was due, and what sums them up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy

from load_tests.traffic.schedule import TimedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What happened to one request.

    Attributes:
        request: as it was sent.
        first_token_s: when the first token of any of its sequences was there; None if never.
        finish_s: when its last token was there; None if it was still open at the end.
    """

    request: TimedRequest
    first_token_s: float | None = None
    finish_s: float | None = None

    @property
    def normalized_latency_s(self) -> float | None:
        """End-to-end seconds per output token (paper, section 6.1); None if it did not end."""
        return None if self.finish_s is None else self.e2e_s / self.request.output_len

    @property
    def ttft_s(self) -> float:
        """Seconds from the due time to the first token of a request that was served."""
        assert self.first_token_s is not None
        return self.first_token_s - self.request.due_s

    @property
    def e2e_s(self) -> float:
        """Seconds from the due time to the last token of a request that was served."""
        assert self.finish_s is not None
        return self.finish_s - self.request.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None for a single token."""
        if self.request.output_len < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.request.output_len - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A distribution in five numbers."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A service level: a request is good when it finished and kept both limits.

    Attributes:
        ttft_s: seconds from the due time to the first token.
        tpot_s: mean seconds per token after the first.
    """

    ttft_s: float = 1.0
    tpot_s: float = 0.05

    def is_kept(self, served: Served) -> bool:
        """Whether a request that was served is good; a single token has no tpot to miss."""
        return served.ttft_s <= self.ttft_s and (served.tpot_s or 0.0) <= self.tpot_s

    def limits(self) -> dict[str, float | None]:
        """Both limits as JSON values: one that does not bind is null."""
        values = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s}
        return {name: value if value < float("inf") else None for name, value in values.items()}


DEFAULT_OBJECTIVE = Objective()


def latencies(served: Iterable[Served]) -> dict[str, list[float]]:
    """Time to first token, per further token and end to end, of requests that were served."""
    done = list(served)
    return {
        "ttft_s": [one.ttft_s for one in done],
        "tpot_s": [value for one in done if (value := one.tpot_s) is not None],
        "e2e_s": [one.e2e_s for one in done],
    }


def summarise(values: Sequence[float]) -> Summary | None:
    """Sum up a distribution; None for no values."""
    if not values:
        return None
    p50, p90, p99 = numpy.percentile(values, (50, 90, 99)).tolist()
    return Summary(mean=fmean(values), p50=p50, p90=p90, p99=p99, max=max(values))
