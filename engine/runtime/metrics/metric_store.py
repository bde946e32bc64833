"""The values of metrics in one process."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.executor.codec import Codec
from engine.runtime.metrics.metric import Metric, MetricKind
from engine.types import IntColumn, int64

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric with one set of labels.

    Attributes:
        name: see `Metric`.
        labels: values, in the order of `Metric.labels`.
        value: of a counter or gauge; the sum of all values of a histogram.
        counts: int64 values in each bucket of a histogram, the one without an end last.
    """

    name: str
    labels: Labels
    value: float
    counts: IntColumn = field(default_factory=int64)


_SERIES = Codec(list[Series])


def encode_series(series: list[Series]) -> bytes:
    """Write series for another process."""
    return _SERIES.encode(series)


def decode_series(data: bytes) -> list[Series]:
    """Read what `encode_series` wrote.

    Raises:
        InvariantViolated: if the bytes are something else.
    """
    return _SERIES.decode(data)


@dataclass(slots=True)
class _Buckets:
    counts: IntColumn
    total: float = 0.0


class MetricStore:
    """Counters, gauges and histograms by metric and labels.

    All that grows is O(series), whatever is observed: labels come from the code, never from a
    request.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        """Begin with nothing; counters and histograms without labels are there from the start."""
        self._metrics = {metric.name: metric for metric in metrics}
        self._values: dict[tuple[str, Labels], float] = {}
        self._buckets: dict[tuple[str, Labels], _Buckets] = {}
        for metric in self._metrics.values():
            if metric.kind is MetricKind.COUNTER and not metric.labels:
                self.add(metric, 0)
            elif metric.kind is MetricKind.HISTOGRAM and not metric.labels:
                self.observe(metric, 0.0, 0)

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """Let a counter grow."""
        key = metric.name, labels
        self._values[key] = self._values.get(key, 0) + value

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Give a gauge its value."""
        self._values[metric.name, labels] = value

    def observe(self, metric: Metric, value: float, count: int = 1, *labels: str) -> None:
        """Count a value in a histogram `count` times."""
        key = metric.name, labels
        buckets = self._buckets.get(key)
        if buckets is None:
            buckets = self._buckets[key] = _Buckets(int64([0] * (len(metric.bounds) + 1)))
        buckets.counts[bisect_left(metric.bounds, value)] += count
        buckets.total += value * count

    def series(self) -> list[Series]:
        """Return all there is, in no order."""
        return [
            *(
                Series(name=name, labels=labels, value=value)
                for (name, labels), value in self._values.items()
            ),
            *(
                Series(name=name, labels=labels, value=each.total, counts=each.counts[:])
                for (name, labels), each in self._buckets.items()
            ),
        ]
