import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ray import serve

from app.deployments import Engine, Ingress
from app.engine_handle import ServeEngineHandle
from engine.errors import EngineError
from engine.runtime.gang import GangOptions
from engine.types import CLIENT_SHIFT
from tests.app.scripted_app import make_app
from tests.runtime import scripted

pytestmark = pytest.mark.ray

NAME = "scripted"
WORKERS = "tests.runtime.scripted:load_slow_worker"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def url(ray_cluster: None) -> Iterator[str]:
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    quick = {"graceful_shutdown_timeout_s": 20, "graceful_shutdown_wait_loop_s": 0.05}
    engine = Engine.options(  # type: ignore[attr-defined]
        **quick,
        health_check_period_s=0.2,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        scripted.engine_config(),
        GangOptions(num_cpus_per_rank=0.1, worker_factory=WORKERS),
        Path,
    )
    ingress = Ingress.options(  # type: ignore[attr-defined]
        **quick, ray_actor_options={"num_cpus": 0.1}
    )
    serve.run(ingress.bind(engine, make_app), name=NAME, route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def generate(http: httpx.AsyncClient, prompt: list[int], count: int) -> list[str]:
    query = {"prompt": ",".join(map(str, prompt)), "max_tokens": str(count)}
    answer = await http.get("/generate", params=query)
    return answer.text.split()


def expected(prompt: list[int], count: int) -> list[str]:
    return [str(token) for token in scripted.continuation(prompt, count)]


def engine_handle() -> Any:
    return serve.get_deployment_handle("Engine", NAME)


async def test_concurrent_requests_get_their_own_tokens(http: httpx.AsyncClient) -> None:
    prompts = [[1, 2, 3], [9]]
    answers = await asyncio.gather(*(generate(http, prompt, 20) for prompt in prompts))
    assert answers == [expected(prompt, 20) for prompt in prompts]


async def test_a_disconnect_aborts_its_request_and_no_other(http: httpx.AsyncClient) -> None:
    # the first request of all opens the shared stream: it must survive that request's end
    async with http.stream("GET", "/generate", params={"prompt": "1", "max_tokens": "190"}) as it:
        await anext(it.aiter_lines())
        other = asyncio.create_task(generate(http, [4, 5], 40))
    assert await other == expected([4, 5], 40)
    async with asyncio.timeout(20):
        while (await generate(http, [6], 1)) and await num_open() > 0:
            pass


async def num_open() -> int:
    """Open requests of the engine replica, from its own report of its load."""
    stats: dict[str, float] = await engine_handle().record_autoscaling_stats.remote()
    return round(stats["pressure"] * scripted.engine_config().max_num_seqs)


def rank_processes() -> list[psutil.Process]:
    """This cluster's rank actors, by the title that Ray gives their processes."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.cmdline()[0].startswith("ray::RankActor")]


async def test_a_call_for_a_replica_that_is_gone_is_refused(url: str) -> None:
    handle = ServeEngineHandle(engine_handle())
    with pytest.raises(EngineError, match="gone"):
        await handle.abort("no-such-replica", (1 << CLIENT_SHIFT,))
    with pytest.raises(EngineError, match="gone"):
        await anext(aiter(handle.attach("no-such-replica", 1)))


async def test_a_killed_rank_fails_its_requests_and_the_replica_is_replaced(
    http: httpx.AsyncClient,
) -> None:
    async with http.stream("GET", "/generate", params={"prompt": "1", "max_tokens": "190"}) as it:
        lines = it.aiter_lines()
        await anext(lines)
        ranks = rank_processes()
        assert len(ranks) == 2
        ranks[1].kill()
        async with asyncio.timeout(20):
            assert len([line async for line in lines]) < 190
    async with asyncio.timeout(60):
        while await generate(http, [7], 5) != expected([7], 5):
            pass
