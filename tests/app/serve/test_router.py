"""Serve's part of routing: pinned calls, requests, replicas that are about to stop."""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID

from app.serve.router import EngineRouter, session_of, session_without
from engine.runtime.messages import REQUESTS
from engine.runtime.routing import known_replicas
from engine.runtime.routing.leaving_replicas import UNUSED_S
from engine.runtime.routing.replica_load import ReplicaLoad
from engine.types import Request, SamplingParams, int32
from tests.fakes.loop_clock import LoopClock, settle

REQUEST = Request(request_id=1, prompt=int32([5] * 9), sampling=SamplingParams(max_tokens=1))


class FakeReplica:
    """What Serve knows of a replica."""

    max_ongoing_requests = 5

    def __init__(self, tag: str, **load: Any) -> None:
        self.replica_id = ReplicaID(tag, DeploymentID("Engine", "app"))
        known = {"tokens_per_s": 10.0, "total_tokens": 99, "free_tokens": 99}
        self.routing_stats = ReplicaLoad(**(known | load)).to_stats()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


def call(session_id: str = "", method: str = "submit") -> Any:
    return SimpleNamespace(
        args=[7, REQUESTS.encode(REQUEST), None],
        metadata=SimpleNamespace(session_id=session_id, call_method=method),
        routing_context=SimpleNamespace(should_backoff=False),
    )


BUSY, FREE = FakeReplica("busy", waiting_tokens=50.0), FakeReplica("free")


def router(*replicas: FakeReplica, drain_s: float = 30.0) -> EngineRouter:
    made = EngineRouter(DeploymentID("Engine", "app"), DeploymentHandleSource.REPLICA)
    made.initialize_state(drain_s=drain_s)
    update(made, *replicas)
    return made


def update(made: EngineRouter, *replicas: FakeReplica) -> None:
    made.update_replicas(list(replicas))  # type: ignore[arg-type]


async def choose(made: EngineRouter, pending: Any = None) -> list[str]:
    ranked = await made.choose_replicas(list(made.curr_replicas.values()), pending)
    return tags([replica for rank in ranked for replica in rank])


def tags(replicas: Sequence[Any]) -> list[str]:
    return [replica.replica_id.unique_id for replica in replicas]


@pytest.mark.parametrize("tag", ["busy", "free"])
async def test_a_pinned_call_reaches_its_replica_however_loaded(tag: str) -> None:
    assert await choose(router(BUSY, FREE), call(session_of(tag))) == [tag]


@pytest.mark.parametrize("session_id", ["", "busy", session_of("gone")])
async def test_a_request_goes_where_it_is_served_soonest(session_id: str) -> None:
    pending = call(session_id)
    assert await choose(router(BUSY, FREE), pending) == ["free", "busy"]
    # a round in which every replica refuses is not followed by another one at once
    assert pending.routing_context.should_backoff


@pytest.mark.parametrize("pending", [None, call(method="is_ready")])
async def test_any_other_call_goes_anywhere(pending: Any) -> None:
    assert sorted(await choose(router(BUSY, FREE), pending)) == ["busy", "free"]


async def test_a_replica_off_the_list_gets_pinned_calls_only() -> None:
    made = router(BUSY, FREE)
    update(made, BUSY)
    assert await choose(made, call()) == ["busy"]
    assert await choose(made, call(session_of("free"))) == ["free"]
    # the list comes again and again
    update(made, BUSY)
    assert await choose(made, call(session_of("free"))) == ["free"]
    update(made, BUSY, FREE)
    assert await choose(made, call()) == ["free", "busy"]


async def test_whoever_sends_past_serve_knows_the_replicas_that_take_requests() -> None:
    made = router(BUSY, FREE)
    known = known_replicas.latest()
    assert known == {"busy": BUSY.routing_stats, "free": FREE.routing_stats}
    update(made, BUSY)
    assert known_replicas.latest() == {"busy": BUSY.routing_stats}
    update(made)
    assert known_replicas.latest() == {}


async def test_pins_end_with_the_drain() -> None:
    made = router(BUSY, FREE, drain_s=0.0)
    update(made, BUSY)
    assert await choose(made, call(session_of("free"))) == ["busy"]


async def test_a_replica_that_is_avoided_comes_last_however_loaded() -> None:
    assert await choose(router(BUSY, FREE), call(session_without("free"))) == ["busy", "free"]
    assert await choose(router(BUSY, FREE), call(session_without("busy"))) == ["free", "busy"]
    assert await choose(router(BUSY, FREE), call(session_without("gone"))) == ["free", "busy"]


async def test_a_replica_that_starts_its_gang_again_comes_last() -> None:
    unready = FakeReplica("unready", is_unready=True)
    assert await choose(router(unready, BUSY), call()) == ["busy", "unready"]


async def test_a_replica_that_has_died_is_not_called() -> None:
    made = router(BUSY, FREE)
    update(made, BUSY)
    made.on_replica_actor_died(FREE.replica_id)
    update(made, BUSY)
    assert await choose(made, call(session_of("free"))) == ["busy"]


async def test_the_last_replica_is_forgotten_when_nobody_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LoopClock(monkeypatch)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    made = router(FREE)
    update(made)
    assert await choose(made, call()) == []
    await clock.advance(UNUSED_S - 1)
    assert await choose(made, call(session_of("free"))) == ["free"]
    await clock.advance(1)
    assert tags(list(made.curr_replicas.values())) == ["free"]
    await clock.advance(UNUSED_S)
    # Serve starts one for the next request as soon as there is none
    assert not made.curr_replicas
    await settle()
