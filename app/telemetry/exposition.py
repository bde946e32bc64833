"""Metrics as text, in Prometheus's format."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from app.telemetry.ingress_table import INGRESS_METRICS
from engine.runtime.metrics.engine_table import ENGINE_METRICS
from engine.runtime.metrics.metric import PREFIX, Metric, MetricKind
from engine.runtime.metrics.metric_store import Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ALL_METRICS: tuple[Metric, ...] = (*INGRESS_METRICS, *ENGINE_METRICS)
_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in ALL_METRICS}

# series of each replica, by its tag
Scraped = Sequence[tuple[str, Sequence[Series]]]


def to_text(scraped: Scraped, model_name: str, extra: Iterable[Family] = ()) -> bytes:
    """Write all series of all replicas.

    Args:
        extra: further families, such as names that other servers have.
    """
    return generate_latest(_Collected([*families(scraped, model_name), *extra]))


class _Collected(Collector):
    def __init__(self, found: Sequence[Family]) -> None:
        self._found = found

    def collect(self) -> Iterator[Family]:
        return iter(self._found)


def families(scraped: Scraped, model_name: str) -> list[Family]:
    """Put the series of each metric together, in the order of the tables."""
    by_metric: dict[str, list[tuple[str, Series]]] = {name: [] for name in _BY_NAME}
    for replica, series in scraped:
        for each in series:
            if each.name in by_metric:
                by_metric[each.name].append((replica, each))
    return [
        _family(_BY_NAME[name], model_name, found) for name, found in by_metric.items() if found
    ]


def _family(metric: Metric, model_name: str, found: list[tuple[str, Series]]) -> Family:
    family = make_family(
        f"{PREFIX}{metric.name}", metric, ("model_name", "replica", *metric.labels)
    )
    for replica, series in sorted(found, key=lambda pair: (pair[0], pair[1].labels)):
        add(family, metric, (model_name, replica, *series.labels), series)
    return family


def make_family(name: str, metric: Metric, labels: Sequence[str]) -> Family:
    """Make an empty family under a name of its own."""
    kinds = {
        MetricKind.COUNTER: CounterMetricFamily,
        MetricKind.GAUGE: GaugeMetricFamily,
        MetricKind.HISTOGRAM: HistogramMetricFamily,
    }
    family: Family = kinds[metric.kind](name, metric.doc, labels=labels)
    return family


def add(family: Family, metric: Metric, labels: Sequence[str], series: Series) -> None:
    """Add a series to the family of its metric."""
    if isinstance(family, HistogramMetricFamily):
        bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
        counts = accumulate(series.counts)
        family.add_metric(labels, list(zip(bounds, counts, strict=True)), series.value)
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(labels, series.value)
