from types import SimpleNamespace
from typing import Any

import pytest

from app.serve.router import EngineRouter, rank, session_of, session_without


def replica(tag: str, **stats: float) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=tag), routing_stats=stats)


def pending(session_id: str) -> Any:
    return SimpleNamespace(
        metadata=SimpleNamespace(session_id=session_id),
        routing_context=SimpleNamespace(should_backoff=False),
    )


REPLICAS = [replica("a", num_waiting=5.0), replica("b", num_waiting=0.0)]


async def choose(session_id: str) -> list[list[Any]]:
    # the choice uses no state of the router
    router = EngineRouter.__new__(EngineRouter)
    return await router.choose_replicas(REPLICAS, pending(session_id))


@pytest.mark.parametrize("index", [0, 1])
async def test_a_pinned_call_reaches_its_replica_however_loaded(index: int) -> None:
    tag = REPLICAS[index].replica_id.unique_id
    assert await choose(session_of(tag)) == [[REPLICAS[index]]]


@pytest.mark.parametrize("session_id", ["", "a", session_of("gone")])
async def test_any_other_call_prefers_the_less_loaded(session_id: str) -> None:
    assert await choose(session_id) == [[REPLICAS[1]], [REPLICAS[0]]]


async def test_a_replica_that_is_avoided_comes_last_however_loaded() -> None:
    assert await choose(session_without("b")) == [[REPLICAS[0]], [REPLICAS[1]]]
    assert await choose(session_without("a")) == [[REPLICAS[1]], [REPLICAS[0]]]
    assert await choose(session_without("gone")) == await choose("")


def test_a_replica_that_starts_its_gang_again_comes_last() -> None:
    busy, unready = replica("a", num_waiting=9.0), replica("b", is_unready=1.0)
    assert rank([unready, busy]) == [busy, unready]


def test_memory_decides_among_equal_queues() -> None:
    full, empty = replica("a", kv_usage=0.9), replica("b", kv_usage=0.1)
    assert rank([full, empty]) == [empty, full]


def test_every_replica_is_ranked_once_and_the_busiest_is_never_first() -> None:
    replicas = [replica(str(number), num_waiting=float(number)) for number in range(5)]
    for _ in range(50):
        ranked = rank(replicas)
        assert sorted(r.routing_stats["num_waiting"] for r in ranked) == [0, 1, 2, 3, 4]
        assert ranked[0] is not replicas[4]
