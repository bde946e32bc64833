import base64
from array import array
from dataclasses import replace
from typing import Any

import pytest

from app.ui.audience import OPERATOR, Audience
from app.ui.events import EventLog
from app.ui.frames import KEPT, MAX_REFERENCES, PINNED, frame_of
from engine.runtime.metrics.engine_metrics import EngineMetrics
from engine.runtime.outputs import idle_stats
from engine.types import EventKind, int32
from tests.app.ui.views import ALICE, BOB, snapshot_of_two_tenants, view_of
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.workload import run_workload


def tables_of(frame: dict[str, Any]) -> list[list[int]]:
    column = array("i", base64.b64decode(frame["tables"]))
    tables, start = [], 0
    for length in frame["table_lens"]:
        tables.append(column[start : start + length].tolist())
        start += length
    return tables


class Page:
    """Looks at an engine after each step, as an operator, and keeps what the metrics say."""

    def __init__(self, checked: CheckedEngine) -> None:
        self.log = EventLog()
        self.metrics = EngineMetrics(idle_stats(checked.setting.capacity))

    def look(self, checked: CheckedEngine) -> None:
        """What is shown agrees with the metrics at this moment."""
        output = checked.outputs[-1]
        self.metrics.observe(output, float(len(checked.outputs)))
        self.metrics.set_gauges()
        snapshot = checked.engine.scheduler.snapshot(0.0)
        frame = frame_of("a", snapshot, self.metrics.store.series(), OPERATOR, is_ready=True)
        metrics, size = frame["metrics"], frame["block_size"]
        states = base64.b64decode(frame["blocks"])
        unused = [state for state in states if not state & MAX_REFERENCES]
        pinned = sum(bool(state & PINNED) for state in unused)
        cached = sum(bool(state & KEPT) and not state & PINNED for state in unused)
        assert metrics["kv_slots:pinned"] == pinned * size
        assert metrics["kv_slots:cached"] == cached * size
        assert metrics["kv_slots:free"] == (len(unused) - pinned - cached) * size
        assert metrics["kv_capacity_slots"] == len(states) * size
        for name, state in (("waiting", (0,)), ("running", (1, 2)), ("swapped", (3,))):
            shown = sum(each in state for each in frame["states"])
            assert metrics[f"requests:{name}"] == shown == frame["queues"][name]
        if output.events is not None:
            happened = zip(
                output.events.requests, output.events.kinds, output.events.times_us, strict=True
            )
            events = [(each, EventKind(kind), time, b"") for each, kind, time in happened]
            self.log.take(view_of(None, events), None)


def check_workload(seed: int) -> None:
    """Blocks, queues and events of a random workload are those of the metrics."""
    pages: list[Page] = []

    def look(checked: CheckedEngine) -> None:
        if not pages:
            pages.append(Page(checked))
        pages[0].look(checked)

    run_workload(seed, may_pin=False, look=look)
    [page] = pages
    kinds = [kind for _, _, kind, _ in page.log.since(0, OPERATOR)]
    series = {each.name: each for each in page.metrics.store.series() if each.counts}
    assert kinds.count(EventKind.ADMITTED) == sum(series["queue_seconds"].counts)
    preempted = {
        each.labels[0]: each.value
        for each in page.metrics.store.series()
        if each.name == "preemptions_total"
    }
    assert preempted["swap"] == kinds.count(EventKind.PREEMPTED_SWAP)
    assert preempted["recompute"] == kinds.count(EventKind.PREEMPTED_RECOMPUTE)


def test_what_is_shown_agrees_with_the_metrics_of_random_workloads() -> None:
    for seed in range(12):
        check_workload(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(10_000, 11_000, 50))
def test_what_is_shown_agrees_with_the_metrics_of_a_thousand_workloads(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        check_workload(seed)


def test_an_operator_sees_all_requests() -> None:
    snapshot = snapshot_of_two_tenants()
    frame = frame_of("a", snapshot, [], OPERATOR, is_ready=True)
    assert frame["requests"] == ["b", "c", "d"]
    assert frame["owners"] == [0, 1, 2, 2]
    assert frame["usage"]["filled"] == snapshot.usage.filled
    assert [len(table) for table in tables_of(frame)] == snapshot.pool.table_lens.tolist()


def test_a_tenant_sees_its_own_requests_and_only_references_of_others() -> None:
    snapshot = snapshot_of_two_tenants()
    whole = frame_of("a", snapshot, [], OPERATOR, is_ready=True)
    for account, ids, owners in ((ALICE, ["b", "d"], [0, 1, 1]), (BOB, ["c"], [0])):
        frame = frame_of("a", snapshot, [], Audience(account), is_ready=True)
        assert frame["requests"] == ids
        assert frame["owners"] == owners
        own = [
            table
            for table, owner in zip(tables_of(whole), whole["owners"], strict=True)
            if whole["requests"][owner] in ids
        ]
        assert tables_of(frame) == own
        assert frame["blocks"] == whole["blocks"]
        assert not frame.keys() & {"usage", "queues", "metrics"}
        assert len(frame["prompt_lens"]) == len(frame["widths"]) == len(ids)


def test_a_stranger_sees_blocks_and_nobody() -> None:
    frame = frame_of("a", snapshot_of_two_tenants(), [], Audience(b"carol"), is_ready=True)
    assert frame["requests"] == frame["owners"] == tables_of(frame) == []


def test_a_replica_without_a_snapshot_shows_that_it_is_there() -> None:
    assert frame_of("a", None, [], Audience(ALICE), is_ready=False) == {"id": "a", "ready": False}


@pytest.mark.parametrize("most", [[255, 255], [256, 1000]])
def test_many_references_are_shown_as_many_and_never_as_flags(most: list[int]) -> None:
    snapshot = snapshot_of_two_tenants()
    counts = int32([0, 1, 62, 63, 64, 255, *most] + [0] * 24)
    pool = replace(snapshot.pool, references=counts, kept=bytes(31) + b"\1", pinned=int32([1, 31]))
    frame = frame_of("a", replace(snapshot, pool=pool), [], OPERATOR, is_ready=True)
    states = base64.b64decode(frame["blocks"])
    assert list(states[:8]) == [0, 1 | PINNED, 62, 63, 63, 63, 63, 63]
    assert states[31] == KEPT | PINNED
