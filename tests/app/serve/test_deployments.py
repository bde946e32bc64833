import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import psutil
import pytest
from ray import serve

from app.serve.deployments import EngineDeployment
from app.serve.handle import ServeEngineHandle
from engine.config import ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.messages import PREFIXES
from engine.runtime.output_socket.port import OutputPort
from engine.runtime.output_socket.reader import OpenStream, read_outputs
from engine.types import Pin, int32
from tests.fakes import scripted_worker as scripted
from tests.fakes.scripted_app import NAME, make_engine

pytestmark = pytest.mark.ray


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


async def until_replaced(replica: psutil.Process, names: list[str]) -> None:
    """Wait until a replica is gone, and two have these prefixes."""
    async with asyncio.timeout(60):
        while True:
            if not replica.is_running() and await pins() == [names] * 2:
                return
            # what starts has more need of the processor
            await asyncio.sleep(0.1)


@pytest.fixture
async def engine_client(url: str) -> AsyncIterator[RemoteEngineClient]:
    client = RemoteEngineClient(ServeEngineHandle(engine_handle()), resume=ResumeConfig())
    yield client
    await client.close()


async def test_pins_reach_every_replica_until_they_are_released(
    engine_client: RemoteEngineClient,
) -> None:
    await engine_client.pin_prefix(int32([2] * 8), Pin(name="first"))
    await engine_client.pin_prefix(int32([3] * 8), Pin(name="second"))
    assert await pins() == [["configured", "first", "second"]] * 2
    for name in ("first", "second"):
        await engine_client.release_prefix(name)
    assert await pins() == [["configured"]] * 2


def test_what_a_rank_refuses_ends_the_deployment_at_once(url: str) -> None:
    refused = make_engine("tests.fakes.scripted_worker:load_nothing")
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


async def test_streams_go_on_when_their_replica_is_killed(
    http: httpx.AsyncClient, engine_client: RemoteEngineClient
) -> None:
    """And the replica that joins has what is pinned, and not what was released."""
    await engine_client.pin_prefix(int32([2] * 8), Pin(name="released"))
    await engine_client.pin_prefix(int32([3] * 8), Pin(name="kept"))
    await engine_client.release_prefix("released")
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
    await until_replaced(replica, ["configured", "kept"])
    await engine_client.release_prefix("kept")


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
