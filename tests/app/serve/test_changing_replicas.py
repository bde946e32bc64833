"""Engine replicas come and go under load, with real Serve: no answer is refused, cut or wrong."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray import serve
from ray.serve._private.common import ReplicaState

from app.serve.deployments import EngineDeployment, IngressDeployment, draining
from app.serve.drain import drain
from engine.config import ResumeConfig
from engine.runtime.replica.client_session import LEASE_S
from engine.runtime.replica.gang import GangOptions
from tests.fakes import scripted_worker as scripted
from tests.fakes.scripted_app import make_app

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NAME = "changing"
SCALING = {
    "min_replicas": 1,
    "max_replicas": 3,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 3.0,
    # the least that Serve takes without a warning
    "look_back_period_s": 10.1,
    "policy": {
        "policy_function": "app.serve.scaling:EngineScaling",
        "policy_kwargs": {"usage": 0.8, "delay_s": 1.0},
    },
}
# the longest request of the slowest worker, well beyond a lease
LONG = 190
assert LONG * scripted.LONG_STEP_S > 1.5 * LEASE_S


def application(worker: str, *, start_wait_s: float = 0.0, **options: Any) -> serve.Application:
    max_num_waiting = options.pop("max_num_waiting", 1024)
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **draining(drain_s=60.0),
        graceful_shutdown_wait_loop_s=0.05,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
        **options,
    ).bind(
        replace(scripted.engine_config(ranks=1), max_num_waiting=max_num_waiting),
        GangOptions(num_cpus_per_rank=0.1, worker_factory=f"tests.fakes.scripted_worker:{worker}"),
        Path,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        ray_actor_options={"num_cpus": 0.1}, graceful_shutdown_wait_loop_s=0.05
    )
    made: serve.Application = ingress.bind(engine, make_app, ResumeConfig(), None, start_wait_s)
    return made


@pytest.fixture
async def http(serve_url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=serve_url, timeout=120, limits=limits) as client:
        yield client
    await asyncio.to_thread(serve.delete, NAME)


async def run(app: serve.Application) -> None:
    await asyncio.to_thread(serve.run, app, name=NAME, route_prefix="/")


async def ask(http: httpx.AsyncClient, start: int, count: int) -> None:
    """Fail if the answer to a request is not what it should be."""
    answer = await http.get("/generate", params={"prompt": str(start), "max_tokens": str(count)})
    expected = [str(token) for token in scripted.continuation([start], count)]
    assert (answer.status_code, answer.text.split()) == (200, expected)


async def num_running() -> int:
    status = await asyncio.to_thread(serve.status)
    states = status.applications[NAME].deployments["Engine"].replica_states
    return states.get(ReplicaState.RUNNING, 0)


async def ask_until(http: httpx.AsyncClient, count: int, at_once: int) -> None:
    """Keep so many requests open until so many replicas run."""
    async with asyncio.timeout(120):
        while await num_running() != count:
            await asyncio.gather(*(ask(http, start, 100) for start in range(at_once)))


async def test_replicas_follow_a_load_that_rises_and_falls(http: httpx.AsyncClient) -> None:
    await run(application("load_slow_worker", autoscaling_config=SCALING))
    assert await num_running() == 1
    await ask_until(http, 3, at_once=60)
    await ask_until(http, 1, at_once=1)


async def test_a_redeploy_under_load_cuts_nobody(http: httpx.AsyncClient) -> None:
    await run(application("load_slowest_worker", num_replicas=2))
    long = [asyncio.create_task(ask(http, start, LONG)) for start in range(4)]
    # all have begun
    await ask(http, 9, 3)
    redeploy = asyncio.create_task(
        run(application("load_slowest_worker", num_replicas=2, max_num_waiting=99))
    )
    while not redeploy.done():
        await ask(http, 9, 3)
    await asyncio.gather(redeploy, *long)


async def test_the_first_request_starts_the_first_replica(http: httpx.AsyncClient) -> None:
    config = SCALING | {"min_replicas": 0, "initial_replicas": 0, "downscale_to_zero_delay_s": 1.0}
    await run(application("load_slow_worker", autoscaling_config=config, start_wait_s=60.0))
    assert await num_running() == 0
    assert (await http.get("/ready")).text == "True"
    assert await num_running() == 0
    await ask(http, 3, 20)
    async with asyncio.timeout(60):
        while await num_running():
            assert (await http.get("/ready")).text == "True"


async def test_a_server_that_drains_ends_what_is_open_and_takes_nothing_new(
    http: httpx.AsyncClient,
) -> None:
    await run(application("load_slowest_worker", num_replicas=1))
    long = asyncio.create_task(ask(http, 1, LONG))
    await ask(http, 9, 3)
    draining_now = asyncio.create_task(drain(NAME, 60.0))
    query = {"prompt": "1", "max_tokens": "1"}
    async with asyncio.timeout(30):
        while (await http.get("/generate", params=query)).status_code != 503:
            pass
    assert (await http.get("/ready")).text == "False"
    await long
    assert await draining_now == 0
