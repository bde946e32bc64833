from engine.runtime.metrics.engine_table import ENGINE_METRICS
from engine.runtime.metrics.metric_store import MetricStore
from engine.runtime.metrics.request_times import RequestTimes
from engine.types import EventKind, RequestEvents, int8, int64

PHASES = ("queue_seconds", "prefill_seconds", "decode_seconds", "preempted_seconds")


def phases(*events: tuple[EventKind, float], own: tuple[int, ...] = ()) -> list[list[float]]:
    """For each phase the observations and their sum, of a request with these events."""
    store = MetricStore(ENGINE_METRICS)
    times = RequestTimes(store)
    for kind, at_s in events:
        column = RequestEvents(
            requests=int64([7]), kinds=int8([kind]), times_us=int64([round(1e6 * at_s)])
        )
        times.observe(column, own)
    assert not times._open
    found = {each.name: each for each in store.series()}
    return [[sum(found[name].counts), found[name].value] for name in PHASES]


QUEUED, ADMITTED, PREFILLED = EventKind.QUEUED, EventKind.ADMITTED, EventKind.PREFILLED
SWAP, RECOMPUTE = EventKind.PREEMPTED_SWAP, EventKind.PREEMPTED_RECOMPUTE
RESUMED, ENDED = EventKind.RESUMED, EventKind.ENDED


def test_the_phases_of_a_request_follow_each_other() -> None:
    found = phases((QUEUED, 1.0), (ADMITTED, 1.5), (PREFILLED, 3.5), (ENDED, 10.0))
    assert found == [[1, 0.5], [1, 2.0], [1, 6.5], [0, 0.0]]


def test_time_away_is_not_time_to_decode() -> None:
    found = phases(
        (QUEUED, 0), (ADMITTED, 1), (PREFILLED, 2), (SWAP, 4), (RESUMED, 7), (RECOMPUTE, 8),
        (RESUMED, 9), (PREFILLED, 10), (ENDED, 12),
    )  # fmt: skip
    assert found == [[1, 1.0], [1, 1.0], [1, 6.0], [2, 4.0]]


def test_a_request_that_is_swapped_out_and_then_recomputed_was_away_once() -> None:
    found = phases(
        (QUEUED, 0), (ADMITTED, 1), (PREFILLED, 2), (SWAP, 3), (RECOMPUTE, 5), (RESUMED, 6),
        (ENDED, 8),
    )  # fmt: skip
    assert found == [[1, 1.0], [1, 1.0], [1, 3.0], [1, 3.0]]


def test_a_request_that_ends_early_has_only_the_phases_it_has_had() -> None:
    assert phases((QUEUED, 0), (ENDED, 5)) == [[0, 0.0]] * 4
    found = phases((QUEUED, 0), (ADMITTED, 1), (PREFILLED, 2), (SWAP, 3), (ENDED, 7))
    assert found == [[1, 1.0], [1, 1.0], [1, 1.0], [1, 4.0]]


def test_own_requests_are_left_out() -> None:
    assert phases((QUEUED, 0), (ADMITTED, 1), (ENDED, 5), own=(7,)) == [[0, 0.0]] * 4
