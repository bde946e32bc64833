"""Spans on their way: a queue with a bound, which a thread of its own sends on in batches."""

import threading
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

# held at once, those that are being sent among them: a few MiB
MAX_SPANS = 2048
_BATCH = 512


class SpanQueue(SpanProcessor):
    """Holds spans until an exporter has handed them on; none is waited for.

    A collector that answers nothing holds up the thread, never who ends a span. What does not fit
    and what the exporter could not hand on is counted, each span once.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        on_dropped: Callable[[int], None],
        max_spans: int = MAX_SPANS,
    ) -> None:
        """Begin with none.

        Args:
            on_dropped: called with how many spans were lost, by one thread at a time.
        """
        self._on_dropped = on_dropped
        self._max_spans = max_spans
        self._num_held = 0
        self._lock = threading.Lock()
        counted = _Counted(exporter, self._on_sent)
        # with its own bound as large as ours, it never drops one that we do not count
        self._batches = BatchSpanProcessor(
            counted, max_queue_size=max_spans, max_export_batch_size=min(_BATCH, max_spans)
        )

    @property
    def num_held(self) -> int:
        """Spans that wait or are being sent."""
        return self._num_held

    def can_take(self, num_spans: int) -> bool:
        """Whether as many spans fit; if not, they count as dropped and must not be made."""
        with self._lock:
            fits = self._num_held + num_spans <= self._max_spans
            if not fits:
                self._on_dropped(num_spans)
            return fits

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span."""
        if span.context is not None and span.context.trace_flags.sampled:
            with self._lock:
                self._num_held += 1
            self._batches.on_end(span)

    def close(self, limit_s: float) -> None:
        """Send what is held for as many seconds at most, and end."""
        # the SDK has no limit that holds for a collector that accepts and does not answer
        ending = threading.Thread(target=self._batches.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(limit_s)

    def _on_sent(self, num_spans: int, is_lost: bool) -> None:
        with self._lock:
            self._num_held -= num_spans
            if is_lost:
                self._on_dropped(num_spans)


class _Counted(SpanExporter):
    """Says of each batch when another exporter is done with it, and whether it was lost."""

    def __init__(self, exporter: SpanExporter, on_sent: Callable[[int, bool], None]) -> None:
        self._exporter = exporter
        self._on_sent = on_sent

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._on_sent(len(spans), result is not SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
