import json

import pytest
import yaml

from app.telemetry.board.alerts import rules
from app.telemetry.board.dashboard import dashboard
from app.telemetry.board.reference import files
from app.telemetry.exposition import ALL_METRICS
from tests import ROOT


@pytest.mark.parametrize("name", files())
def test_files_are_what_the_code_says(name: str) -> None:
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == files()[name], "make docs writes it anew"


def test_what_is_written_can_be_read() -> None:
    written = files()
    assert json.loads(written["deploy/grafana-dashboard.json"]) == dashboard()
    assert yaml.safe_load(written["deploy/prometheus-alerts.yaml"]) == rules()


def test_every_metric_has_a_row() -> None:
    page = files()["docs/metrics.md"]
    for metric in ALL_METRICS:
        assert f"| `{metric.shown_name}` | {metric.kind.value} |" in page
