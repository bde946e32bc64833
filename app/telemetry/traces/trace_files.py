"""Exporters of spans: to a collector, or to files of OTLP in JSON, a line for each batch."""

import base64
import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.telemetry.traces.tracing_options import TracingOptions

logger = logging.getLogger(__name__)

# seconds that a collector has to answer
_TIMEOUT_S = 5
MAX_FILE_BYTES = 256 << 20
_IDS = ("traceId", "spanId", "parentSpanId")


def exporter_of(options: TracingOptions, replica: str) -> SpanExporter:
    """Make the exporter that options name.

    Args:
        replica: tag, which names a file.
    """
    if options.protocol == "file":
        name = re.sub(r"[^\w.-]", "_", replica)
        return FileExporter(Path(options.endpoint).expanduser() / f"{name}.jsonl")
    headers = dict(options.headers)
    return OTLPSpanExporter(options.endpoint, headers=headers, timeout=_TIMEOUT_S)


class FileExporter(SpanExporter):
    """Appends to a file until it is full."""

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._max_bytes = max_bytes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write a line with these spans."""
        batch: dict[str, Any] = MessageToDict(encode_spans(spans))
        line = json.dumps(_with_hex_ids(batch)).encode() + b"\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                if file.tell() + len(line) > self._max_bytes:
                    return SpanExportResult.FAILURE
                file.write(line)
        except OSError as error:
            logger.warning("spans_not_written reason=%s", error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS


def _with_hex_ids(value: Any) -> Any:
    """Write ids as OTLP's JSON has them; those of protobuf's are in base64."""
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(each).hex() if name in _IDS else _with_hex_ids(each)
        for name, each in value.items()
    }
