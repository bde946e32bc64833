from collections.abc import Iterator
from typing import Any

import pytest

from app.serve import ray_mirror
from app.serve.ray_mirror import RayMirror
from engine.runtime.metrics.metric import counter, gauge, histogram
from engine.runtime.metrics.metric_store import MetricStore

SENT = counter("sent", "things", "who")
LEVEL = gauge("level", "height")
TOOK = histogram("took_seconds", "time", (1.0,))


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, float, dict[str, str]]]]:
    calls: list[tuple[str, float, dict[str, str]]] = []

    class Exported:
        def __init__(self, name: str, doc: str, keys: Any) -> None:
            self._name, self._keys = name, keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self._keys)
            calls.append((self._name, value, tags))

        def inc(self, value: float, tags: dict[str, str]) -> None:
            # as Ray does
            assert value > 0
            self.set(value, tags)

    monkeypatch.setattr(ray_mirror, "Counter", Exported)
    monkeypatch.setattr(ray_mirror, "Gauge", Exported)
    return iter([calls])


def test_counters_are_copied_by_their_growth_and_gauges_each_time(exported: Any) -> None:
    [calls] = exported
    store = MetricStore((SENT, LEVEL, TOOK))
    mirror = RayMirror((SENT, LEVEL, TOOK), store.series, "r")
    store.add(SENT, 0, "me")
    store.set(LEVEL, 5)
    mirror.copy()
    store.add(SENT, 2, "me")
    mirror.copy()
    store.add(SENT, 3, "me")
    mirror.copy()
    level = ("pagoda_level", 5, {"engine_or_ingress": "r"})
    tags = {"engine_or_ingress": "r", "who": "me"}
    sent = [call for call in calls if call[0] == "pagoda_sent_total"]
    assert sent == [("pagoda_sent_total", 2, tags), ("pagoda_sent_total", 3, tags)]
    assert [call for call in calls if call[0] != "pagoda_sent_total"] == [level] * 3
