"""Hands the spans of chosen requests to OpenTelemetry."""

from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.telemetry.request_record import RequestRecord
from app.telemetry.traces.span_queue import SpanQueue
from app.telemetry.traces.span_tree import SpanNode, span_tree
from app.telemetry.traces.trace_choice import TraceChoice
from app.telemetry.traces.trace_files import exporter_of
from app.telemetry.traces.tracing_options import TracingOptions

_SCHEMA = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
# seconds that what is left has to reach the collector when the ingress ends
_CLOSE_S = 5.0


class Tracer:
    """Makes spans of requests that are over. A provider of its own: Serve has one, too."""

    def __init__(
        self,
        options: TracingOptions,
        *,
        replica: str,
        on_dropped: Callable[[int], None] = lambda count: None,
        exporter: SpanExporter | None = None,
    ) -> None:
        """Begin.

        Args:
            replica: tag of the ingress.
            on_dropped: called, by one thread at a time, with how many spans could not be handed on.
            exporter: instead of the one that the options name.
        """
        names = {"service.name": "pagoda", "service.instance.id": replica}
        self._model = options.model_name
        self._choice = TraceChoice(options.ratio, options.max_traces_per_s)
        self._provider = TracerProvider(resource=Resource(names, _SCHEMA), shutdown_on_exit=False)
        self._queue = SpanQueue(exporter or exporter_of(options, replica), on_dropped)
        self._provider.add_span_processor(self._queue)
        self._tracer = self._provider.get_tracer("pagoda", schema_url=_SCHEMA)
        self._propagator = TraceContextTextMapPropagator()

    @property
    def num_held(self) -> int:
        """Spans that have not reached the collector yet."""
        return self._queue.num_held

    def take(self, record: RequestRecord) -> None:
        """Trace a generation that has ended, if it is chosen."""
        if not record.is_generation:
            return
        context, is_asked_for = Context(), False
        # most have none, and to look for it takes as long as all else
        if record.traceparent:
            context = self._propagator.extract({"traceparent": record.traceparent})
            caller = get_current_span(context).get_span_context()
            is_asked_for = caller.is_valid and caller.trace_flags.sampled
        if self._choice.wants(record, is_asked_for=is_asked_for):
            operation = _operation(record)
            tree = span_tree(record, f"{operation} {self._model}")
            # all spans of a request or none; behind a dead collector they cost nothing
            if self._queue.can_take(sum(1 for _ in tree.walk())):
                tree.attributes |= _attributes(record, operation, self._model)
                made = self._make(tree, context, record, {})
                record.trace_id = format(made.trace_id, "032x")

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """Hand on what is left; waits for the collector, but not longer than `limit_s`."""
        self._queue.close(limit_s)

    def _make(
        self,
        node: SpanNode,
        context: Context,
        record: RequestRecord,
        made: dict[SpanNode, SpanContext],
    ) -> SpanContext:
        is_root = not made
        span = self._tracer.start_span(
            node.name,
            context,
            kind=SpanKind.SERVER if is_root else SpanKind.INTERNAL,
            attributes=node.attributes,
            links=[Link(made[each]) for each in node.links],
            start_time=1000 * node.start_us,
        )
        made[node] = span.get_span_context()
        if is_root and record.outcome == "error":
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span, context)
        for child in node.children:
            self._make(child, inside, record, made)
        span.end(1000 * node.end_us)
        return made[node]


def _operation(record: RequestRecord) -> str:
    return "text_completion" if record.route == "/v1/completions" else "chat"


def _attributes(record: RequestRecord, operation: str, model: str) -> dict[str, str | int | float]:
    """Return what conventions for GenAI name, and the rest under our own; never a text."""
    found: dict[str, str | int | float] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "pagoda",
        "gen_ai.request.model": model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "http.response.status_code": record.code,
        "http.route": record.route,
        "pagoda.outcome": record.outcome,
        "pagoda.candidates": record.num_candidates,
        "pagoda.preemptions": record.num_preemptions,
        "pagoda.resumes": record.num_resumes,
    }
    if record.outcome in ("error", "overloaded", "refused"):
        found["error.type"] = str(record.code)
    return found
