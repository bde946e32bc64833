from engine.runtime.metrics.metric import counter, gauge, histogram
from engine.runtime.metrics.metric_store import MetricStore, Series, decode_series, encode_series

SENT = counter("sent", "things")
SENT_BY = counter("sent_by", "things", "who")
LEVEL = gauge("level", "height")
TOOK = histogram("took_seconds", "time", (1.0, 2.0))
METRICS = (SENT, SENT_BY, LEVEL, TOOK)


def by_name(store: MetricStore) -> dict[tuple[str, ...], Series]:
    return {(each.name, *each.labels): each for each in store.series()}


def test_what_only_grows_is_there_from_the_start() -> None:
    found = by_name(MetricStore(METRICS))
    assert found.keys() == {("sent_total",), ("took_seconds",)}
    assert found["sent_total",].value == 0
    assert list(found["took_seconds",].counts) == [0, 0, 0]


def test_a_value_counts_in_the_bucket_whose_bound_it_does_not_exceed() -> None:
    store = MetricStore(METRICS)
    for value, count in ((0.5, 1), (1.0, 2), (1.5, 4), (2.5, 8)):
        store.observe(TOOK, value, count)
    found = by_name(store)["took_seconds",]
    assert list(found.counts) == [3, 4, 8]
    assert found.value == 0.5 + 2.0 + 6.0 + 20.0


def test_labels_are_series_of_their_own() -> None:
    store = MetricStore(METRICS)
    store.add(SENT_BY, 1, "me")
    store.add(SENT_BY, 2, "you")
    store.add(SENT_BY, 3, "me")
    store.set(LEVEL, 5)
    store.set(LEVEL, 4)
    found = by_name(store)
    assert (found["sent_by_total", "me"].value, found["sent_by_total", "you"].value) == (4, 2)
    assert found["level",].value == 4


def test_series_travel_as_they_are_and_do_not_change() -> None:
    store = MetricStore(METRICS)
    store.observe(TOOK, 0.5)
    taken = store.series()
    store.observe(TOOK, 0.5)
    [histogram_] = [each for each in taken if each.name == TOOK.name]
    assert list(histogram_.counts) == [1, 0, 0]
    assert decode_series(encode_series(taken)) == taken


def test_names_are_shown_as_prometheus_has_them() -> None:
    assert SENT.shown_name == "pagoda_sent_total"
    assert TOOK.shown_name == "pagoda_took_seconds"
