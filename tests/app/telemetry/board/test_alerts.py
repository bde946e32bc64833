import pytest

from app.telemetry.board.alerts import ALERTS, Alert, rules
from tests.app.telemetry.board.expressions import check


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_asks_for_what_is_scraped(alert: Alert) -> None:
    check(alert.expression)
    assert alert.summary
    assert alert.todo.endswith(".")


def test_alerts_have_names_of_their_own_and_a_severity() -> None:
    [group] = rules()["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(ALERTS)
    assert {rule["labels"]["severity"] for rule in group["rules"]} == {"page", "ticket"}
