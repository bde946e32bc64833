"""What an ingress makes of reports that come late, or not at all."""

from random import Random
from typing import Any

from engine.runtime.routing.replica_load import ReplicaLoad
from engine.runtime.routing.routing_table import STALE_S, RoutingTable
from engine.runtime.routing.scoring import marks_of_prompt
from engine.types import Request, SamplingParams, int32

REQUEST = Request(request_id=1, prompt=int32([5] * 300), sampling=SamplingParams(max_tokens=1))
Stats = dict[str, Any]


def stats(report: int = 1, **fields: Any) -> Stats:
    load = {"tokens_per_s": 100.0, "total_tokens": 9999, "free_tokens": 9999, "block_size": 16}
    return ReplicaLoad(report=report, **(load | fields)).to_stats()


def firsts(replicas: dict[str, Stats], now_s: float = 0.0) -> set[str]:
    """Which replicas a new ingress may choose first."""
    return {RoutingTable(Random(s)).choose(REQUEST, replicas, now_s)[0] for s in range(30)}


def test_every_replica_is_in_the_order_once() -> None:
    replicas = {"a": stats(), "b": stats(waiting_tokens=900.0), "new": {}, "unmeasured": stats()}
    order = RoutingTable(Random(0)).choose(REQUEST, replicas, 0.0)
    assert sorted(order) == sorted(replicas)
    assert order[-1] == "new"


def test_without_any_report_two_random_choices_are_made() -> None:
    assert firsts({"a": {}, "b": {}, "c": {}}) == {"a", "b", "c"}


def test_before_any_prompt_was_computed_the_busiest_is_never_first() -> None:
    replicas = {str(n): stats(tokens_per_s=0.0, num_waiting=n) for n in range(4)}
    assert firsts(replicas) == {"0", "1", "2"}
    tables = (RoutingTable(Random(seed)) for seed in range(30))
    assert {table.choose(None, replicas, 0.0)[0] for table in tables} == {"0", "1", "2"}


def test_a_replica_that_has_not_computed_a_prompt_yet_gets_its_first_one() -> None:
    replicas = {"old": stats(waiting_tokens=500.0), "started": stats(tokens_per_s=0.0)}
    assert firsts(replicas) == {"started"}


def test_what_was_sent_is_remembered_until_the_next_report() -> None:
    table = RoutingTable(Random(0))
    replicas = {"a": stats(), "b": stats(waiting_tokens=450.0)}
    chosen = [table.choose(REQUEST, replicas, 0.0)[0] for _ in range(3)]
    assert chosen == ["a", "a", "b"]
    replicas["a"] = stats(report=2)
    assert table.choose(REQUEST, replicas, 0.1)[0] == "a"


def test_an_old_report_is_not_believed() -> None:
    table = RoutingTable(Random(0))
    replicas = {"stuck": stats(), "busy": stats(waiting_tokens=5000.0)}
    assert table.choose(REQUEST, replicas, 0.0)[0] == "stuck"
    replicas["busy"] = stats(report=2, waiting_tokens=5000.0, num_waiting=3)
    assert table.choose(REQUEST, replicas, STALE_S)[0] == "busy"
    # when all are old, they are compared by the requests that waited then
    assert table.choose(REQUEST, replicas, 3 * STALE_S)[0] == "stuck"


def test_a_cached_prompt_is_found_by_its_marks() -> None:
    marks = b"".join(marks_of_prompt(REQUEST.prompt, b"", 16))
    assert firsts({"a": stats(), "b": stats(marks=marks), "c": stats()}) == {"b"}


def test_marks_that_have_not_changed_are_kept() -> None:
    table = RoutingTable(Random(0))
    marks = b"".join(marks_of_prompt(REQUEST.prompt, b"", 16))
    for report in range(1, 4):
        replicas = {"a": stats(report), "b": stats(report, marks=marks)}
        assert table.choose(REQUEST, replicas, float(report))[0] == "b"
    replicas = {"a": stats(9, marks=marks), "b": stats(9, marks=b"")}
    assert table.choose(REQUEST, replicas, 9.0)[0] == "a"


def test_a_replica_that_is_gone_is_forgotten() -> None:
    table = RoutingTable(Random(0))
    table.choose(REQUEST, {"a": stats(), "b": stats()}, 0.0)
    assert table.choose(REQUEST, {"b": stats()}, 0.0) == ["b"]
    assert table.choose(REQUEST, {}, 0.0) == []


def test_a_replica_that_is_being_started_again_comes_last() -> None:
    replicas = {"unready": stats(is_unready=True), "busy": stats(waiting_tokens=5000.0), "new": {}}
    assert RoutingTable(Random(0)).choose(REQUEST, replicas, 0.0) == ["busy", "new", "unready"]
    assert firsts({"a": stats(is_unready=True)}) == {"a"}


def test_an_avoided_replica_comes_behind_even_those_and_is_not_noted_as_chosen() -> None:
    table = RoutingTable(Random(0))
    replicas = {"free": stats(), "busy": stats(waiting_tokens=5000.0)}
    for _ in range(30):
        assert table.choose(REQUEST, replicas, 0.0, avoided="free") == ["busy", "free"]
    assert table.choose(REQUEST, replicas, 0.0, avoided="gone") == ["free", "busy"]
    unready = {"a": stats(), "b": stats(is_unready=True)}
    assert RoutingTable(Random(0)).choose(REQUEST, unready, 0.0, avoided="a") == ["b", "a"]
