"""What an ingress replica tells its operators, put together."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.telemetry.access_log import AccessLog
from app.telemetry.exposition import Scraped, to_text
from app.telemetry.ingress_metrics import IngressMetrics
from app.telemetry.ingress_table import INFO, SCRAPE_MISSING, SPANS_DROPPED
from app.telemetry.log_level import LogLevel
from app.telemetry.recorded_app import Sink
from app.telemetry.traces.tracing_options import TracingOptions
from app.telemetry.vllm_names import vllm_families
from app.ui.feed import AskViews
from app.ui.page_options import PageOptions
from engine.runtime.metrics.metric_store import Series, decode_series, encode_series

if TYPE_CHECKING:
    from app.telemetry.traces.tracer import Tracer

ROLES = ("engine", "ingress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What the replicas have answered.

    Attributes:
        replicas: (tag, encoded series) of those that did.
        num_missing: by role, how many did not.
    """

    replicas: list[tuple[str, bytes]] = field(default_factory=list)
    num_missing: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """What is switched on.

    Attributes:
        model_name: label of all metrics.
        aliases: whether vLLM's names are there, too.
        has_ray_metrics: whether Ray's exporter gets a copy.
        has_access_log: whether each generation has a line in the log.
        tracing: None for no traces.
        info: values of the labels of `INFO`.
        page: None for no page `/ui`.
    """

    model_name: str
    aliases: bool = False
    has_ray_metrics: bool = False
    has_access_log: bool = False
    tracing: TracingOptions | None = None
    info: tuple[str, ...] = ()
    page: PageOptions | None = None


async def no_views(first_events: Mapping[str, int]) -> Sequence[bytes]:
    """Views of no replica."""
    return ()


class Telemetry:
    """The metrics of one ingress, and the way to those of all replicas.

    Attributes:
        page: see `TelemetryOptions`.
        views: asks all engine replicas for what the page shows.
    """

    def __init__(
        self,
        options: TelemetryOptions,
        *,
        replica: str,
        gather: Callable[[], Awaitable[Gathered]],
        set_levels: Callable[[str, float], Awaitable[None]],
        views: AskViews = no_views,
    ) -> None:
        """Begin to measure.

        Args:
            replica: tag of this ingress.
            gather: asks all other replicas for their series.
            set_levels: see `set_log_level`, for all other replicas.
            views: see the class.
        """
        self.page = options.page
        self.views = views
        self._before_end: list[Callable[[], Awaitable[None]]] = []
        self._options = options
        self._replica = replica
        self.metrics = IngressMetrics()
        self.log_level = LogLevel()
        self._tracer = self._make_tracer()
        sinks: list[Sink] = [self.metrics.take]
        if self._tracer is not None:
            sinks.append(self._tracer.take)
        if options.has_access_log:
            sinks.append(AccessLog().take)
        self.sinks = tuple(sinks)
        if options.info:
            self.metrics.store.set(INFO, 1, *options.info)
        self._gather = gather
        self._set_levels = set_levels

    def series(self) -> bytes:
        """What this ingress has measured; for `decode_series`."""
        return encode_series(self.metrics.store.series())

    async def scrape(self) -> bytes:
        """Return the metrics of all replicas, as text."""
        gathered = await self._gather()
        for role in ROLES:
            missing = gathered.num_missing.get(role, 0)
            self.metrics.store.set(SCRAPE_MISSING, missing, role)
        scraped: list[tuple[str, Sequence[Series]]] = [
            (tag, decode_series(data)) for tag, data in gathered.replicas if tag != self._replica
        ]
        scraped.append((self._replica, self.metrics.store.series()))
        return self._text(scraped)

    async def set_log_level(self, level: str, ttl_s: float) -> None:
        """Have every process of every replica log from a level on, for a while."""
        self.log_level.set(level, ttl_s)
        await self._set_levels(level, ttl_s)

    def before_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` called when the ingress is about to end, to end what would hold it up."""
        self._before_end.append(close)

    async def drain(self) -> None:
        """End what would hold up the end of the ingress."""
        for close in self._before_end:
            await close()

    def close(self) -> None:
        """Hand on the spans that are left; takes as long as the collector does, up to seconds."""
        self.log_level.reset()
        if self._tracer is not None:
            self._tracer.close()

    def _make_tracer(self) -> "Tracer | None":
        if self._options.tracing is None:
            return None
        # OpenTelemetry's exporter is an extra
        from app.telemetry.traces.tracer import Tracer

        store = self.metrics.store
        return Tracer(
            self._options.tracing,
            replica=self._replica,
            on_dropped=lambda count: store.add(SPANS_DROPPED, count),
        )

    def _text(self, scraped: Scraped) -> bytes:
        name = self._options.model_name
        extra = vllm_families(scraped, name) if self._options.aliases else ()
        return to_text(scraped, name, extra)
