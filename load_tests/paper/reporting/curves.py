"""What a latency curve says: the rate that a system sustains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# normalized latency that still counts as served; where the curves of the paper turn upwards
SUSTAINED_S = 0.3


@dataclass(frozen=True, slots=True)
class SustainedRate:
    """A rate in requests per second.

    Attributes:
        bound: `=` where the curve crosses the limit, `>` if all its rates are sustained, `<` if
            none is.
    """

    rate_per_s: float
    bound: str = "="

    def __str__(self) -> str:
        sign = "" if self.bound == "=" else f"{self.bound} "
        return f"{sign}{self.rate_per_s:.3g}"


def sustained(points: Sequence[tuple[float, float]], limit_s: float = SUSTAINED_S) -> SustainedRate:
    """Find where a curve crosses a latency, its logarithm being linear between points.

    Args:
        points: (rate, normalized latency in seconds), rates increasing.
        limit_s: the latency.
    """
    before = None
    for rate, latency_s in points:
        if latency_s > limit_s:
            if before is None:
                return SustainedRate(rate, "<")
            share = math.log(limit_s / before[1]) / math.log(latency_s / before[1])
            return SustainedRate(before[0] + share * (rate - before[0]))
        before = rate, latency_s
    return SustainedRate(points[-1][0], ">")


def ratio(ours: SustainedRate, baseline: SustainedRate) -> tuple[float, str]:
    """How many times the baseline's rate is sustained, and whether that is a bound."""
    bounds = {ours.bound, {"=": "=", "<": ">", ">": "<"}[baseline.bound]} - {"="}
    bound = bounds.pop() if len(bounds) == 1 else "=" if not bounds else "?"
    return ours.rate_per_s / baseline.rate_per_s, bound
