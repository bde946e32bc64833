from load_tests.monitoring.alerts import faster


def test_windows_and_waits_are_divided_and_thresholds_stay() -> None:
    rule = {"alert": "X", "expr": "rate(a[5m]) > 0.2 * rate(b[15m]) and c > 60", "for": "10m"}
    [group] = faster({"groups": [{"name": "x", "rules": [rule]}]}, 10)["groups"]
    expected = {"expr": "rate(a[30s]) > 0.2 * rate(b[90s]) and c > 60", "for": "60s"}
    assert group == {"name": "x", "rules": [rule | expected]}


def test_nothing_takes_less_than_a_second() -> None:
    [group] = faster({"groups": [{"rules": [{"expr": "a[5s]", "for": "0m"}]}]}, 10)["groups"]
    assert group["rules"] == [{"expr": "a[1s]", "for": "1s"}]
