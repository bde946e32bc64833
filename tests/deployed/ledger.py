"""What clients have got, what /metrics say of it, and what traces do."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.app.telemetry.test_exposition import samples

Samples = dict[tuple[str, ...], float]


def total(found: Samples, name: str, *labels: str) -> float:
    """Sum a metric over all series that have these labels, written name=value."""
    return sum(
        value
        for key, value in found.items()
        if key[0] == f"pagoda_{name}" and set(labels) <= set(key)
    )


def gained(before: bytes, after: bytes) -> Samples:
    """What all series have more than before."""
    was = samples(before)
    return {key: value - was.get(key, 0.0) for key, value in samples(after).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One span, as a file of OTLP has it."""

    name: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


def traced(folder: Path) -> dict[str, list[Traced]]:
    """Read all spans of a folder, by trace."""
    found: dict[str, list[Traced]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for span in _spans(json.loads(line)):
                found.setdefault(span["traceId"], []).append(_read(span))
    return found


def root_of(spans: Iterable[Traced]) -> Traced:
    """Return the one span without a parent; the others lie within theirs.

    Raises:
        AssertionError: if they are not one tree.
    """
    by_id = {span.span_id: span for span in spans}
    [root] = [span for span in by_id.values() if not span.parent_id]
    for span in by_id.values():
        assert span.start_ns <= span.end_ns
        if span is not root:
            parent = by_id[span.parent_id]
            assert parent.start_ns <= span.start_ns
            assert span.end_ns <= parent.end_ns
    return root


def _spans(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in batch["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def _read(span: dict[str, Any]) -> Traced:
    return Traced(
        name=span["name"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes={each["key"]: _value(each["value"]) for each in span.get("attributes", [])},
    )


def _value(value: dict[str, Any]) -> Any:
    [(kind, content)] = value.items()
    return int(content) if kind == "intValue" else content
