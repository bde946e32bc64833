"""Spans as a collector gets them: over HTTP, and in files."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.telemetry.request_record import RequestRecord
from app.telemetry.traces.tracer import Tracer
from app.telemetry.traces.tracing_options import TracingOptions
from engine.types import EventKind
from tests.app.telemetry.records import ended
from tests.app.telemetry.traces.collector import Collector

SECRET = "collector-key"
EVENTS = [
    [
        (EventKind.QUEUED, 1_000_200_000),
        (EventKind.ADMITTED, 1_000_250_000),
        (EventKind.PREFILLED, 1_000_300_000),
        (EventKind.PREEMPTED_SWAP, 1_000_400_000),
        (EventKind.RESUMED, 1_000_500_000),
        (EventKind.ENDED, 1_000_900_000),
    ]
]


def options(endpoint: str, **fields: Any) -> TracingOptions:
    defaults: dict[str, Any] = {
        "model_name": "tiny",
        "protocol": "http/protobuf",
        "ratio": 1.0,
        "max_traces_per_s": 1000.0,
    }
    return TracingOptions(endpoint=endpoint, **(defaults | fields))


def traced(settings: TracingOptions, *records: RequestRecord) -> None:
    tracer = Tracer(settings, replica="Ingress#1")
    for record in records:
        tracer.take(record)
    tracer.close()


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_collector_gets_the_tree_of_a_request(collector: Collector) -> None:
    record = ended(events=EVENTS)
    traced(options(collector.url, headers=(("x-key", SECRET),)), record)
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {
        "text_completion tiny", "read", "submit", "queue", "prefill", "decode", "preempted",
    }  # fmt: skip
    root = spans["text_completion tiny"]
    assert record.trace_id == root.trace_id.hex()
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    for name in ("read", "submit", "queue", "prefill", "decode"):
        assert spans[name].parent_span_id == root.span_id
    assert spans["preempted"].parent_span_id == spans["decode"].span_id
    assert spans["queue"].end_time_unix_nano == spans["prefill"].start_time_unix_nano
    found = attributes(root)
    assert found["gen_ai.usage.output_tokens"] == 10
    assert found["pagoda.preemptions"] == 1
    assert collector.headers[0]["x-key"] == SECRET


def test_the_client_s_trace_goes_on(collector: Collector) -> None:
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    unsampled = "00-" + "ef" * 16 + "-" + "cd" * 8 + "-00"
    settings = options(collector.url, ratio=0.0)
    traced(settings, ended(traceparent=parent), ended(traceparent=unsampled), ended())
    roots = [span for span in collector.spans if "tiny" in span.name]
    assert [span.trace_id.hex() for span in roots] == ["ab" * 16]
    assert roots[0].parent_span_id.hex() == "cd" * 8


@pytest.mark.parametrize("traceparent", ["x", "00-00-00-01", "00-" + "0" * 32 + "-" + "0" * 16])
def test_what_is_no_traceparent_is_ignored(traceparent: str, collector: Collector) -> None:
    record = ended(traceparent=traceparent)
    traced(options(collector.url), record)
    assert len(record.trace_id) == 32
    assert int(record.trace_id, 16)


def test_an_error_is_marked(collector: Collector) -> None:
    traced(options(collector.url, ratio=0.0), ended(code=503))
    [root] = [span for span in collector.spans if "tiny" in span.name]
    assert root.status.code == root.status.STATUS_CODE_ERROR
    assert attributes(root)["error.type"] == "503"


def test_files_have_otlp_in_json(tmp_path: Path) -> None:
    record = ended(events=EVENTS)
    traced(options(str(tmp_path / "spans"), protocol="file"), record)
    [path] = (tmp_path / "spans").iterdir()
    assert path.name == "Ingress_1.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    [line] = path.read_text().splitlines()
    [resource] = json.loads(line)["resourceSpans"]
    [scope] = resource["scopeSpans"]
    assert {span["traceId"] for span in scope["spans"]} == {record.trace_id}
    assert len(scope["spans"]) == 7


def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    from app.telemetry.traces.trace_files import FileExporter

    settings = options(str(tmp_path / "a"), protocol="file")
    full = FileExporter(tmp_path / "full.jsonl", max_bytes=10)
    dropped: list[int] = []
    tracer = Tracer(settings, replica="r", on_dropped=dropped.append, exporter=full)
    tracer.take(ended())
    tracer.close()
    # the request, its body and its submission
    assert sum(dropped) == 3
    assert (tmp_path / "full.jsonl").read_bytes() == b""


def test_requests_that_generate_nothing_have_no_trace(collector: Collector) -> None:
    traced(options(collector.url), ended(is_generation=False))
    assert collector.spans == []
