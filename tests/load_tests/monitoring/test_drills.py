import yaml

from load_tests.monitoring.drills import DRILLS
from tests import ROOT


def test_every_alert_has_a_fault() -> None:
    content = yaml.safe_load((ROOT / "deploy/prometheus-alerts.yaml").read_text())
    alerts = {rule["alert"] for group in content["groups"] for rule in group["rules"]}
    fired = [alert for drill in DRILLS for alert in drill.alerts]
    assert len(set(fired)) == len(fired)
    assert alerts == set(fired)
