"""Copies counters and gauges to Ray's own exporter, which every node of a cluster has.

Histograms are left out: Ray's exporter replays them from the middles of their buckets, so that sums
and means are wrong. The exact ones are at `/metrics`.
"""

import asyncio
from collections.abc import Callable, Sequence

from ray.util.metrics import Counter, Gauge

from engine.runtime.metrics.metric import Metric, MetricKind
from engine.runtime.metrics.metric_store import Labels, Series

# a gauge that is not set vanishes after two of Ray's reports, which come every 10 s
PERIOD_S = 5.0


class RayMirror:
    """Repeats the series of one replica under the same names, which Ray begins with `ray_`."""

    def __init__(
        self, metrics: Sequence[Metric], series: Callable[[], Sequence[Series]], replica: str
    ) -> None:
        """Begin; `run` copies.

        Args:
            metrics: the tables of the replica.
            series: called for what there is now.
            replica: tag, a label of everything.
        """
        self._metrics = {
            each.name: each for each in metrics if each.kind is not MetricKind.HISTOGRAM
        }
        self._series = series
        self._tags = {"engine_or_ingress": replica}
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._sent: dict[tuple[str, Labels], float] = {}

    async def run(self) -> None:
        """Copy for as long as the task is not cancelled."""
        while True:
            self.copy()
            await asyncio.sleep(PERIOD_S)

    def copy(self) -> None:
        """Copy what there is now."""
        for each in self._series():
            metric = self._metrics.get(each.name)
            if metric is None:
                continue
            tags = self._tags | dict(zip(metric.labels, each.labels, strict=True))
            if metric.kind is MetricKind.GAUGE:
                self._gauge(metric).set(each.value, tags)
            else:
                self._grow(metric, each, tags)

    def _grow(self, metric: Metric, series: Series, tags: dict[str, str]) -> None:
        key = series.name, series.labels
        growth = series.value - self._sent.get(key, 0.0)
        # Ray refuses to count nothing
        if growth > 0:
            self._counter(metric).inc(growth, tags)
            self._sent[key] = series.value

    def _gauge(self, metric: Metric) -> Gauge:
        if metric.name not in self._gauges:
            keys = (*self._tags, *metric.labels)
            self._gauges[metric.name] = Gauge(metric.shown_name, metric.doc, keys)
        return self._gauges[metric.name]

    def _counter(self, metric: Metric) -> Counter:
        if metric.name not in self._counters:
            keys = (*self._tags, *metric.labels)
            self._counters[metric.name] = Counter(metric.shown_name, metric.doc, keys)
        return self._counters[metric.name]
