"""What a metric is: its name, kind, labels and meaning, each written once."""

from dataclasses import dataclass
from enum import Enum

# what every metric's name begins with
PREFIX = "pagoda_"

# seconds to the first token, and of requests: where vLLM has its bounds, so that boards fit both
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
REQUEST_S = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
# seconds between tokens; a decode step of a small batch takes 4 to 6 ms on a GPU
TOKEN_S = (
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
# seconds of work on a host
HOST_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)
# tokens of a request or a step
TOKENS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
)  # fmt: skip
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)


class MetricKind(Enum):
    """How the values of a metric go together."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of the table.

    Attributes:
        name: without `PREFIX`.
        doc: the meaning, in one line of Markdown.
        labels: names, beside `model_name` and `replica`.
        bounds: of the buckets of a histogram, increasing; one without an end is added.
    """

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name as it is scraped."""
        return f"{PREFIX}{self.name}"


def counter(name: str, doc: str, *labels: str) -> Metric:
    """Declare a metric that only grows; its name gets the `_total` that Prometheus wants."""
    return Metric(name=f"{name}_total", kind=MetricKind.COUNTER, doc=doc, labels=labels)


def gauge(name: str, doc: str, *labels: str) -> Metric:
    """Declare a metric that is what it is now."""
    return Metric(name=name, kind=MetricKind.GAUGE, doc=doc, labels=labels)


def histogram(name: str, doc: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    """Declare a metric that counts values by size."""
    return Metric(name=name, kind=MetricKind.HISTOGRAM, doc=doc, labels=labels, bounds=bounds)
