"""An ingress that is frozen with calls to an engine under way, with real Serve."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from ray import serve

from app.serve.deployments import EngineDeployment, IngressDeployment, draining
from engine.config import ResumeConfig
from engine.runtime.replica.client_session import ClientLimits
from engine.runtime.replica.gang import GangOptions
from tests.fakes import scripted_worker as scripted
from tests.fakes.scripted_app import make_app

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NAME = "frozen"
LENGTH, NUM_STREAMS = 120, 12
# a frozen client is given up while the streams of the other one run on
LIMITS = ClientLimits(lease_s=1.0, forgiven_s=2.0)
assert 2 * LIMITS.forgiven_s < LENGTH * scripted.LONG_STEP_S


def application() -> serve.Application:
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **draining(drain_s=5.0),
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        replace(scripted.engine_config(ranks=1, num_blocks=512), max_num_waiting=1024),
        GangOptions(
            num_cpus_per_rank=0.1, worker_factory="tests.fakes.scripted_worker:load_slowest_worker"
        ),
        Path,
        LIMITS,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        num_replicas=2, ray_actor_options={"num_cpus": 0.1}
    )
    made: serve.Application = ingress.bind(engine, make_app, ResumeConfig())
    return made


@pytest.fixture
async def http(serve_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=serve_url, timeout=120) as client:
        yield client
    await asyncio.to_thread(serve.delete, NAME)


def replicas(deployment: str) -> list[psutil.Process]:
    """The processes of its replicas that run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and f"{NAME}:{deployment}" in process.cmdline()[0]:
                found.append(process)
    return found


async def stream(http: httpx.AsyncClient, start: int, begun: asyncio.Event) -> str:
    """Ask for an answer; says when its first token has come."""
    query = {"prompt": str(start), "max_tokens": str(LENGTH)}
    text = ""
    async with http.stream("GET", "/generate", params=query) as response:
        async for piece in response.aiter_text():
            begun.set()
            text += piece
    return text


async def test_the_streams_of_others_go_on_from_the_same_engine(http: httpx.AsyncClient) -> None:
    await asyncio.to_thread(serve.run, application(), name=NAME, route_prefix="/")
    [engine], ingresses = replicas("Engine"), replicas("Ingress")
    assert len(ingresses) == 2
    begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
    streams = [asyncio.create_task(stream(http, i, begun[i])) for i in range(NUM_STREAMS)]
    for event in begun:
        await event.wait()
    frozen = ingresses[0]
    frozen.send_signal(signal.SIGSTOP)
    try:
        # those of the frozen one do not end, nor do others where the engine waits for it
        done, _ = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        assert replicas("Engine") == [engine]
        for each in done:
            tokens = scripted.continuation([streams.index(each)], LENGTH)
            assert each.result().split() == [str(token) for token in tokens]
    finally:
        frozen.kill()
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
