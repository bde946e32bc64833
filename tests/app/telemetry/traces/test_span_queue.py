"""What a collector that hangs, refuses or is slow does to requests: nothing."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from starlette.applications import Starlette

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.telemetry.ingress_table import SPANS_DROPPED
from app.telemetry.telemetry import Gathered, Telemetry, TelemetryOptions
from app.telemetry.traces.span_queue import MAX_SPANS
from app.telemetry.traces.tracer import Tracer
from app.telemetry.traces.tracing_options import TracingOptions
from engine.runtime.metrics.metric_store import decode_series
from tests.app.api.server import COMPLETIONS, completion_body, in_process
from tests.app.telemetry.records import ended
from tests.app.telemetry.traces.collector import Collector
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient, Script

# of a request without events: itself, `read` and `submit`
_SPANS_EACH = 3


class HangingExporter(SpanExporter):
    """Keeps every batch until it is let go, as a collector that accepts and does not answer.

    Attributes:
        is_called: set by the first batch.
        num_sent: spans of the batches that it was done with.
        threads: that called it.
    """

    def __init__(self) -> None:
        self.is_called, self._may_go_on = threading.Event(), threading.Event()
        self.num_sent = 0
        self.threads: set[threading.Thread] = set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.threads.add(threading.current_thread())
        self.is_called.set()
        self._may_go_on.wait()
        self.num_sent += len(spans)
        return SpanExportResult.SUCCESS

    def let_go(self) -> None:
        self._may_go_on.set()


@pytest.fixture
def hanging() -> Iterator[HangingExporter]:
    exporter = HangingExporter()
    yield exporter
    exporter.let_go()


def options(endpoint: str) -> TracingOptions:
    return TracingOptions(
        model_name="tiny",
        endpoint=endpoint,
        protocol="http/protobuf",
        ratio=1.0,
        max_traces_per_s=1e9,
    )


def tracer_of(exporter: SpanExporter, dropped: list[int]) -> Tracer:
    return Tracer(
        options("http://nowhere"), replica="r", on_dropped=dropped.append, exporter=exporter
    )


def test_an_exporter_that_hangs_holds_up_nobody_and_what_does_not_fit_is_counted(
    hanging: HangingExporter,
) -> None:
    dropped: list[int] = []
    tracer = tracer_of(hanging, dropped)
    tracer.take(ended())
    num_taken = 2 * MAX_SPANS // _SPANS_EACH
    for _ in range(num_taken - 1):
        tracer.take(ended())
        assert tracer.num_held <= MAX_SPANS
    assert hanging.is_called.wait(30)
    # the one that hangs is waited for by its own thread
    assert threading.current_thread() not in hanging.threads
    assert hanging.num_sent == 0
    assert tracer.num_held + sum(dropped) == _SPANS_EACH * num_taken
    assert tracer.num_held == MAX_SPANS - MAX_SPANS % _SPANS_EACH
    hanging.let_go()
    tracer.close(30)
    assert hanging.num_sent + sum(dropped) == _SPANS_EACH * num_taken
    assert tracer.num_held == 0


def test_what_does_not_fit_is_left_out_as_a_whole(hanging: HangingExporter) -> None:
    dropped: list[int] = []
    tracer = tracer_of(hanging, dropped)
    for _ in range(MAX_SPANS // _SPANS_EACH):
        tracer.take(ended())
    traced = ended()
    tracer.take(traced)
    assert dropped == [_SPANS_EACH]
    assert traced.trace_id == ""


def test_the_end_does_not_wait_for_a_collector_that_hangs(hanging: HangingExporter) -> None:
    tracer = tracer_of(hanging, [])
    tracer.take(ended())
    ending = threading.Thread(target=tracer.close, args=(0.001,))
    ending.start()
    ending.join(30)
    assert not ending.is_alive()
    assert hanging.num_sent == 0


def test_what_a_collector_refuses_is_counted_once(collector: Collector) -> None:
    collector.code = 400
    dropped: list[int] = []
    tracer = Tracer(options(collector.url), replica="r", on_dropped=dropped.append)
    tracer.take(ended())
    tracer.take(ended())
    tracer.close(30)
    assert sum(dropped) == 2 * _SPANS_EACH
    assert tracer.num_held == 0


async def nobody() -> Gathered:
    return Gathered()


async def ignore(level: str, ttl_s: float) -> None:
    pass


async def test_requests_are_answered_and_drops_are_metrics_while_a_collector_hangs(
    collector: Collector,
) -> None:
    collector.may_answer.clear()
    telemetry = Telemetry(
        TelemetryOptions(model_name="tiny", tracing=options(collector.url)),
        replica="i",
        gather=nobody,
        set_levels=ignore,
    )
    # as many as leave no room for those of the requests
    fill = telemetry.sinks[1]
    num_before = MAX_SPANS // _SPANS_EACH
    for _ in range(num_before):
        fill(ended())
    assert await asyncio.to_thread(collector.is_asked.wait, 30)
    num_requests = 10
    app = scripted_app(telemetry, num_requests)
    async with in_process(app) as http:
        for _ in range(num_requests):
            response = await http.post(COMPLETIONS, json=completion_body() | {"max_tokens": 3})
            assert response.status_code == 200
    assert collector.spans == []
    assert spans_dropped(telemetry) >= num_requests * _SPANS_EACH
    collector.may_answer.set()
    await asyncio.to_thread(telemetry.close)
    assert len(collector.spans) == num_before * _SPANS_EACH


def scripted_app(telemetry: Telemetry, num_requests: int) -> Starlette:
    tokenizer = chatml_tokenizer()
    settings = ApiSettings(
        model_id="tiny", created_s=0, max_model_len=512, vocab_size=len(tokenizer.vocabulary)
    )
    scripts = [Script([5, 6, 7]) for _ in range(num_requests)]
    return build_app(FakeEngineClient(scripts), tokenizer, settings, telemetry)


def spans_dropped(telemetry: Telemetry) -> float:
    series = decode_series(telemetry.series())
    return sum(each.value for each in series if each.name == SPANS_DROPPED.name)
