import random
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from app.telemetry.exposition import ALL_METRICS, to_text
from app.telemetry.ingress_metrics import IngressMetrics
from engine.runtime.metrics.engine_metrics import EngineMetrics
from engine.runtime.metrics.engine_table import INTER_TOKEN_S, PREEMPTIONS
from engine.runtime.metrics.metric import MetricKind
from engine.runtime.metrics.metric_store import MetricStore, Series
from engine.types import int64
from tests.app.telemetry.board.promtool import needs_promtool, promtool
from tests.app.telemetry.records import ended
from tests.fakes.engine_handle import STATS


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Values by name and labels, as Prometheus's own reader finds them."""
    return {
        (each.name, *(f"{name}={value}" for name, value in sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(text.decode())
        for each in family.samples
    }


def series() -> list[Series]:
    store = MetricStore((INTER_TOKEN_S, PREEMPTIONS))
    store.observe(INTER_TOKEN_S, 0.0045, 3)
    store.observe(INTER_TOKEN_S, 100.0, 1)
    store.add(PREEMPTIONS, 2, "swap")
    return store.series()


def test_every_replica_has_series_of_its_own() -> None:
    found = samples(to_text([("a", series()), ("b", series())], "tiny"))
    for replica in ("a", "b"):
        labels = "model_name=tiny", f"replica={replica}"
        assert found["pagoda_preemptions_total", "how=swap", *labels] == 2
        assert found["pagoda_inter_token_seconds_count", *labels] == 4
        assert found["pagoda_inter_token_seconds_sum", *labels] == 100.0135
        buckets = [("0.004", 0), ("0.005", 3), ("80.0", 3), ("+Inf", 4)]
        for bound, count in buckets:
            assert found["pagoda_inter_token_seconds_bucket", f"le={bound}", *labels] == count


def test_a_metric_has_one_head_however_many_replicas_there_are() -> None:
    text = to_text([("a", series()), ("b", series())], "tiny").decode()
    assert text.count("# TYPE pagoda_inter_token_seconds histogram") == 1


def test_what_another_version_measures_is_left_out() -> None:
    unknown = Series(name="of_tomorrow", labels=(), value=1.0)
    assert to_text([("a", [unknown])], "tiny") == b""


def test_names_differ_and_follow_the_rules_of_prometheus() -> None:
    names = [metric.shown_name for metric in ALL_METRICS]
    assert len(set(names)) == len(names)
    for metric in ALL_METRICS:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM)
        assert metric.doc


def test_series_do_not_grow_with_what_clients_send() -> None:
    ingress, engine = IngressMetrics(), EngineMetrics(STATS)
    rng = random.Random(1)
    for number in range(2_000):
        code = rng.choice((200, 400, 404, 429, 499, 503))
        ingress.take(ended(request_id=f"{number}", key=f"{number:08x}", code=code))
    engine.set_gauges()
    num_series = len(ingress.store.series())
    assert num_series < 60
    for number in range(2_000):
        ingress.take(ended(request_id=f"x{number}", code=200))
    assert len(ingress.store.series()) == num_series


@needs_promtool
def test_prometheus_has_no_complaint_about_any_metric(tmp_path: Path) -> None:
    rows = [
        (metric, Series(name=metric.name, labels=("x",) * len(metric.labels), value=1.0))
        for metric in ALL_METRICS
    ]
    found = [
        replace(row, counts=int64([1] * (len(metric.bounds) + 1))) if metric.bounds else row
        for metric, row in rows
    ]
    text = to_text([("a", found)], "tiny")
    assert all(f"# TYPE {metric.shown_name} " in text.decode() for metric in ALL_METRICS)
    assert promtool("check", "metrics", folder=tmp_path, text=text) == ""
