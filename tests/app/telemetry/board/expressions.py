"""What expressions of PromQL ask for."""

from collections.abc import Iterator
from typing import Any

import promql_parser

from app.telemetry.exposition import ALL_METRICS
from engine.runtime.metrics.metric import MetricKind

_LABELS = {"model_name", "replica"}
# name as it is scraped -> its labels
SCRAPED: dict[str, set[str]] = {}
for _metric in ALL_METRICS:
    labels = _LABELS | set(_metric.labels)
    if _metric.kind is MetricKind.HISTOGRAM:
        SCRAPED[f"{_metric.shown_name}_bucket"] = labels | {"le"}
        SCRAPED[f"{_metric.shown_name}_sum"] = SCRAPED[f"{_metric.shown_name}_count"] = labels
    else:
        SCRAPED[_metric.shown_name] = labels


def check(expression: str) -> set[str]:
    """Return the metrics that an expression names; it can be read, and all of them are ours."""
    found = set()
    tree = promql_parser.parse(expression.replace("$__rate_interval", "5m"))
    for selector in _selectors(tree):
        assert selector.name in SCRAPED, f"{selector.name} is not scraped: {expression}"
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= SCRAPED[selector.name], f"{asked} of {selector.name}: {expression}"
        found.add(selector.name)
    assert found, expression
    return found


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _selectors(node.lhs)
        yield from _selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _selectors(argument)
    elif isinstance(node, promql_parser.AggregateExpr | promql_parser.ParenExpr):
        yield from _selectors(node.expr)
