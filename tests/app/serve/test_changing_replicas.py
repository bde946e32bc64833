"""Replicas come, go and freeze under load, with real Serve: no answer is refused, cut or wrong."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ray import serve
from ray.serve._private.common import ReplicaState

from app.serve.deployments import EngineDeployment, IngressDeployment, draining
from app.serve.drain import drain
from engine.config import ResumeConfig
from engine.runtime.replica.client_session import CLIENT_LIMITS, LEASE_S, ClientLimits
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


# an ingress that is frozen is given up while streams of others run on
FROZEN = ClientLimits(lease_s=1.0, forgiven_s=2.0)
assert LONG * scripted.LONG_STEP_S > 3 * 2.0


def application(
    worker: str,
    *,
    start_wait_s: float = 0.0,
    limits: ClientLimits = CLIENT_LIMITS,
    num_ingresses: int = 1,
    num_blocks: int = 64,
    **options: Any,
) -> serve.Application:
    max_num_waiting = options.pop("max_num_waiting", 1024)
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **draining(drain_s=60.0),
        graceful_shutdown_wait_loop_s=0.05,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
        **options,
    ).bind(
        replace(
            scripted.engine_config(ranks=1, num_blocks=num_blocks), max_num_waiting=max_num_waiting
        ),
        GangOptions(num_cpus_per_rank=0.1, worker_factory=f"tests.fakes.scripted_worker:{worker}"),
        Path,
        limits,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        num_replicas=num_ingresses,
        ray_actor_options={"num_cpus": 0.1},
        graceful_shutdown_wait_loop_s=0.05,
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


def replicas(deployment: str) -> list[psutil.Process]:
    """The processes of its replicas that run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if f"{NAME}:{deployment}" in " ".join(process.cmdline()):
                found.append(process)
    return found


async def begin(http: httpx.AsyncClient, start: int, begun: asyncio.Event) -> list[str]:
    """Ask for a long answer; says when its first token has come, returns its tokens."""
    query, text = {"prompt": str(start), "max_tokens": str(LONG)}, ""
    async with http.stream("GET", "/generate", params=query) as response:
        async for piece in response.aiter_text():
            begun.set()
            text += piece
    return text.split()


async def test_a_frozen_ingress_holds_up_its_own_streams_only(http: httpx.AsyncClient) -> None:
    # with room for all streams at once
    await run(application("load_slowest_worker", limits=FROZEN, num_ingresses=2, num_blocks=1024))
    [engine], [frozen, _] = replicas("Engine"), replicas("Ingress")
    begun = [asyncio.Event() for _ in range(12)]
    streams = [asyncio.create_task(begin(http, start, it)) for start, it in enumerate(begun)]
    await asyncio.gather(*(it.wait() for it in begun))
    frozen.send_signal(signal.SIGSTOP)
    try:
        # those of the frozen one do not end
        done, _ = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        assert replicas("Engine") == [engine]
        for each in done:
            tokens = scripted.continuation([streams.index(each)], LONG)
            assert each.result() == [str(token) for token in tokens]
    finally:
        frozen.kill()
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
