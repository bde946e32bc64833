import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import psutil
import pytest
from ray import serve

from app.recorder.flight_recorder import RecorderOptions
from app.serve.deployments import EngineDeployment, IngressDeployment, draining
from app.serve.handle import ServeEngineHandle
from engine.config import PrefixConfig, ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.messages import PREFIXES
from engine.runtime.output_socket.port import OutputPort
from engine.runtime.output_socket.reader import OpenStream, read_outputs
from engine.runtime.replica.gang import GangOptions
from engine.types import Pin, int32
from tests.fakes import scripted_worker as scripted
from tests.fakes.scripted_app import make_app

pytestmark = pytest.mark.ray

NAME = "scripted"
WORKERS = "tests.fakes.scripted_worker:load_slow_worker"
CONFIG = replace(
    scripted.engine_config(ranks=1, pinned_prefix_share=0.2),
    pinned_prefixes=(PrefixConfig(name="configured", token_ids=(1,) * 8),),
)


def make_application(
    worker: str, traces: Path | None = None, num_replicas: int = 1
) -> serve.Application:
    quick = {"graceful_shutdown_timeout_s": 20, "graceful_shutdown_wait_loop_s": 0.05}
    engine = EngineDeployment.options(  # type: ignore[attr-defined]
        **(draining(drain_s=5) | quick),
        num_replicas=num_replicas,
        health_check_period_s=0.2,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}],
        placement_group_strategy="STRICT_PACK",
    ).bind(
        CONFIG,
        GangOptions(num_cpus_per_rank=0.1, worker_factory=worker),
        Path,
    )
    ingress = IngressDeployment.options(  # type: ignore[attr-defined]
        **quick, ray_actor_options={"num_cpus": 0.1}
    )
    recorder = None
    if traces is not None:
        recorder = RecorderOptions(folder=traces, max_bytes=1 << 20, hash_key=b"secret")
    application: serve.Application = ingress.bind(engine, make_app, ResumeConfig(), recorder)
    return application


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def url(serve_url: str, traces: Path) -> Iterator[str]:
    serve.run(make_application(WORKERS, traces, num_replicas=2), name=NAME, route_prefix="/")
    yield serve_url
    serve.delete(NAME)


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


async def pins() -> list[list[str]]:
    """Names of the prefixes that are computed, for each replica."""
    lists = map(PREFIXES.decode, await ServeEngineHandle(engine_handle()).prefixes(b""))
    return [[prefix.name for prefix in listed if prefix.is_warm] for listed in lists]


async def test_a_replica_that_is_ready_has_pinned_the_configured_prefixes(url: str) -> None:
    assert await pins() == [["configured"]] * 2


async def test_a_replica_that_ends_is_ready_for_those_who_may_wait_for_the_next() -> None:
    replica: Any = SimpleNamespace(
        _running=SimpleNamespace(is_healthy=False),
        _supervisor=None,
        _outputs=None,
        _mirroring=None,
        _is_ending=False,
    )
    engine = cast("Any", EngineDeployment).func_or_class
    assert not await engine.is_ready(replica, may_wait=True)
    await engine.__del__(replica)
    assert await engine.is_ready(replica, may_wait=True)
    assert not await engine.is_ready(replica, may_wait=False)


async def test_the_call_for_outputs_lasts_as_long_as_their_stream() -> None:
    may_end = asyncio.Event()

    async def outputs(client: int) -> AsyncIterator[bytes]:
        yield b"output of %d" % client
        await may_end.wait()

    port = OutputPort("127.0.0.1")
    await port.open()
    replica: Any = SimpleNamespace(
        _check_addressee=lambda tag: None,
        _outputs=port,
        _running=SimpleNamespace(
            attach=outputs, submit=lambda client, data: b"%d: %b" % (client, data)
        ),
    )
    call = cast("Any", EngineDeployment).func_or_class.attach(replica, "a", 7)
    streams: list[OpenStream] = []
    batches = read_outputs(await anext(call), streams.append)
    # Serve goes on by itself
    ending = asyncio.create_task(anext(call, None))
    assert await anext(batches) == b"output of 7"
    assert await streams[0].submit(b"request") == b"7: request"
    assert not ending.done(), "Serve would end a replica whose streams are open"
    may_end.set()
    assert await anext(batches, None) is None
    assert await ending is None
    port.close()


async def test_concurrent_requests_get_their_own_tokens(http: httpx.AsyncClient) -> None:
    prompts = [[1, 2, 3], [9]]
    answers = await asyncio.gather(*(generate(http, prompt, 20) for prompt in prompts))
    assert answers == [expected(prompt, 20) for prompt in prompts]


async def test_a_replica_records_its_requests(http: httpx.AsyncClient, traces: Path) -> None:
    await generate(http, [1, 2, 3], 7)
    lengths: set[tuple[int, int]] = set()
    async with asyncio.timeout(20):
        # a line is written soon after its answer
        while (3, 7) not in lengths:
            await generate(http, [9], 1)
            lengths = recorded_lengths(traces)


def recorded_lengths(traces: Path) -> set[tuple[int, int]]:
    texts = [path.read_text() for path in traces.iterdir()]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return {(row["input_length"], row["output_length"]) for row in rows}


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
    return round(stats["num_open"])


def actor_processes(kind: str) -> list[psutil.Process]:
    """This cluster's actors of a kind, by the title that Ray gives their processes."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.cmdline()[0].startswith(f"ray::{kind}")]


async def test_pins_reach_every_replica_and_those_that_join(url: str) -> None:
    client = RemoteEngineClient(ServeEngineHandle(engine_handle()), resume=ResumeConfig())
    try:
        await client.pin_prefix(int32([2] * 8), Pin(name="first"))
        await client.pin_prefix(int32([3] * 8), Pin(name="second"))
        assert await pins() == [["configured", "first", "second"]] * 2
        await client.release_prefix("first")
        replica, _ = actor_processes(f"ServeReplica:{NAME}:Engine")
        replica.kill()
        async with asyncio.timeout(60):
            while await pins() != [["configured", "second"]] * 2 or replica.is_running():
                pass
    finally:
        await client.close()


def test_what_a_rank_refuses_ends_the_deployment_at_once(url: str) -> None:
    refused = make_application("tests.fakes.scripted_worker:load_nothing")
    with pytest.raises(RuntimeError, match="Engine"):
        serve.run(refused, name="refused", route_prefix="/refused")
    engine = serve.status().applications["refused"].deployments["Engine"]
    serve.delete("refused")
    assert engine.status == "DEPLOY_FAILED"
    assert "failed to start 1 times" in engine.message
    assert "ConfigError: no weights here" in engine.message
    # no chain of errors: neither the rank's frames nor those of the call to it
    assert engine.message.count("Traceback") == 1
    assert "load_nothing" not in engine.message
    assert engine.message.rstrip().endswith("ConfigError: no weights here")


async def test_a_call_for_a_replica_that_is_gone_is_refused(url: str) -> None:
    handle = ServeEngineHandle(engine_handle())
    with pytest.raises(EngineError, match="gone"):
        await handle.abort("no-such-replica", (7,))
    with pytest.raises(EngineError, match="gone"):
        await anext(aiter(handle.attach("no-such-replica", 1)))


async def test_streams_go_on_when_their_replica_is_killed(http: httpx.AsyncClient) -> None:
    prompts = [[number] for number in range(6)]
    streams = [asyncio.create_task(generate(http, prompt, 190)) for prompt in prompts]
    async with asyncio.timeout(20):
        # both replicas have some of them by then
        while await num_open() < 1:
            pass
    replica, _ = actor_processes(f"ServeReplica:{NAME}:Engine")
    replica.kill()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*streams) == [expected(prompt, 190) for prompt in prompts]
        while replica.is_running() or len(await pins()) < 2:
            pass


async def test_a_killed_rank_is_replaced_and_neither_its_replica_nor_its_requests(
    http: httpx.AsyncClient,
) -> None:
    replicas = actor_processes(f"ServeReplica:{NAME}:Engine")
    async with http.stream("GET", "/generate", params={"prompt": "1", "max_tokens": "190"}) as it:
        lines = it.aiter_lines()
        tokens = [await anext(lines)]
        ranks = actor_processes("RankActor")
        assert len(ranks) == 2
        # one of the replicas has the request
        for rank in ranks:
            rank.kill()
        async with asyncio.timeout(60):
            tokens += [line async for line in lines]
    assert tokens == expected([1], 190)
    async with asyncio.timeout(60):
        while await generate(http, [7], 5) != expected([7], 5):
            pass
    assert actor_processes(f"ServeReplica:{NAME}:Engine") == replicas
