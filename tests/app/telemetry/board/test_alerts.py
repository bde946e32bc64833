from pathlib import Path

import pytest
import yaml

from app.telemetry.board.alerts import ALERTS, Alert, rules
from tests.app.telemetry.board.expressions import check
from tests.app.telemetry.board.firing import CASES, unit_tests
from tests.app.telemetry.board.promtool import needs_promtool, promtool


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_asks_for_what_is_scraped(alert: Alert) -> None:
    check(alert.expression)
    assert alert.summary
    assert alert.todo.endswith(".")


def test_alerts_have_names_of_their_own_and_a_severity() -> None:
    [group] = rules()["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(ALERTS)
    assert {rule["labels"]["severity"] for rule in group["rules"]} == {"page", "ticket"}


def test_every_alert_has_a_case_that_fires_it() -> None:
    assert {alert.name for alert in ALERTS} == CASES.keys()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
@needs_promtool
def test_an_alert_fires_of_its_fault_and_not_of_less(alert: Alert, tmp_path: Path) -> None:
    written = rules()
    tested = [rule for rule in written["groups"][0]["rules"] if rule["alert"] == alert.name]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(written))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(unit_tests("rules.yaml", tested)))
    promtool("test", "rules", "tests.yaml", folder=tmp_path)


@needs_promtool
def test_the_rules_are_what_prometheus_reads(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    said = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert f"{len(ALERTS)} rules found" in said
