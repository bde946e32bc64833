"""Writes what follows from the tables of metrics: `python -m app.telemetry.board.reference`.

docs/metrics.md, deploy/grafana-dashboard.json and deploy/prometheus-alerts.yaml; see `make docs`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from app.telemetry.board.alerts import ALERTS, rules
from app.telemetry.board.dashboard import dashboard
from app.telemetry.ingress_table import INGRESS_METRICS
from engine.runtime.metrics.engine_table import ENGINE_METRICS
from engine.runtime.metrics.metric import Metric

_HEAD = """# Metrics

Generated from the code by `make docs`; do not edit it by hand.
[Observability](observability.md) says how to scrape them.

Every metric has the labels `model_name` and `replica`; further ones are listed. Times are in
seconds. A counter only grows for as long as its replica lives."""

_ALERTS = """## Alerts

[deploy/prometheus-alerts.yaml](../deploy/prometheus-alerts.yaml) has these rules; those with
severity `page` want somebody at once."""


def files() -> Mapping[str, str]:
    """Path below the project's folder -> content."""
    return {
        "docs/metrics.md": _page(),
        "deploy/grafana-dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        "deploy/prometheus-alerts.yaml": yaml.safe_dump(rules(), sort_keys=False, width=100),
    }


def _page() -> str:
    alerts = [
        (f"`{each.name}`", "page" if each.pages else "ticket", each.summary, each.todo)
        for each in ALERTS
    ]
    parts = [
        _HEAD,
        "## Of an engine replica",
        _metric_table(ENGINE_METRICS),
        "## Of an ingress replica",
        _metric_table(INGRESS_METRICS),
        _ALERTS,
        _table(("alert", "severity", "what is the case", "what to do"), alerts),
    ]
    return "\n\n".join(parts) + "\n"


def _metric_table(metrics: Sequence[Metric]) -> str:
    rows = [
        (
            f"`{each.shown_name}`",
            each.kind.value,
            ", ".join(f"`{label}`" for label in each.labels),
            each.doc,
        )
        for each in metrics
    ]
    return _table(("name", "type", "labels", "meaning"), rows)


def _table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def main(folder: Path) -> None:
    """Write all files below the project's folder."""
    for name, content in files().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
