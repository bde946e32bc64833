"""Real faults of a running server, and the alerts that ought to fire of them."""

import asyncio
import math
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.victims import Fault
from load_tests.overload.slow_client import SlowClient, http_request, until_cut

# of the server: little KV cache, a short queue, no second try, and patience with what is frozen
OPTIONS: dict[str, Any] = {
    "num_blocks": 128,
    # no blocks are kept free for what runs: it will be preempted
    "watermark": 0,
    "growth_blocks": 0,
    "max_model_len": 1024,
    "swap_gib": 0,
    "max_num_waiting": 100,
    "deadlines": {"queue_s": 600, "first_token_s": 600, "gap_s": 600, "write_s": 5},
    "max_resumes": 0,
    "resume_timeout_s": 0,
    "step_deadline_s": 600,
    "ping_timeout_s": 600,
    "start_attempts": 100,
    # nobody listens there
    "tracing": {"endpoint": "http://127.0.0.1:9/v1/traces", "ratio": 1.0},
}
# of the model: log-probabilities are to come fast
VOCAB_SIZE = 2048
_SHORT = {"prompt": [300] * 100, "max_tokens": 100, "ignore_eos": True}
_SMALL = {"prompt": [300] * 8, "max_tokens": 200, "ignore_eos": True}
_LARGE = {"prompt": [300] * 64, "max_tokens": 600, "ignore_eos": True}
# two megabytes; buffers on the way of an answer take half a megabyte of it
_BULKY = {
    "prompt": [[number] * 8 for number in range(300, 308)], "max_tokens": 900,
    "ignore_eos": True, "logprobs": 5, "stream": True,
}  # fmt: skip
_NUM_SLOW = 4
# until one is cut off
_SLOW_LIMIT_S = 60.0
_REFUSED_PAUSE_S = 0.2
_OPENING_S = 3.0
_WORKER, ENGINE, _INGRESS = "worker rank", "replica Engine", "replica Ingress"


@dataclass(slots=True)
class Scene:
    """A server under test.

    Attributes:
        model: its folder.
    """

    server: ServerProcess
    url: str
    model: Path

    def process(self, role: str) -> psutil.Process:
        """Return a process of a role.

        Raises:
            ValueError: if there is none.
        """
        fault = Fault(name=role, role=role, number=signal.SIGKILL)
        return fault.choose(self.server.processes(), random.Random(0))

    @asynccontextmanager
    async def load(self, body: dict[str, Any], num_clients: int) -> AsyncIterator[None]:
        """Have clients ask for one answer after the other, whatever comes of them."""
        async with aiohttp.ClientSession(trust_env=False) as session:
            clients = [asyncio.create_task(self._ask_on(session, body)) for _ in range(num_clients)]
            try:
                yield
            finally:
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)

    async def _ask_on(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
        draw = random.Random(id(asyncio.current_task()))
        while True:
            # no prompt begins as another one does
            sent = body | {"prompt": [draw.randrange(300, VOCAB_SIZE), *body["prompt"]]}
            with suppress(aiohttp.ClientError):
                async with session.post(f"{self.url}/v1/completions", json=sent) as response:
                    await response.read()
                    if response.status == 200:
                        continue
            await asyncio.sleep(_REFUSED_PAUSE_S)


@asynccontextmanager
async def frozen(process: psutil.Process) -> AsyncIterator[None]:
    """Stop a process, and let it go on."""
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A fault that lasts until it is cancelled, and the alerts that it fires."""

    name: str
    alerts: tuple[str, ...]
    act: Callable[[Scene], Awaitable[None]]


async def _overload(scene: Scene) -> None:
    async with scene.load(_LARGE, 128):
        await asyncio.Event().wait()


async def _fill(scene: Scene) -> None:
    async with scene.load(_SHORT, 64):
        await asyncio.Event().wait()


async def _stutter(scene: Scene) -> None:
    # to find it takes longer than it is to run
    worker = scene.process(_WORKER)
    async with scene.load(_SMALL, 4):
        while True:
            async with frozen(worker):
                await asyncio.sleep(0.7)
            await asyncio.sleep(0.1)


async def _kill_workers(scene: Scene) -> None:
    async with scene.load(_SMALL, 8):
        while True:
            await asyncio.to_thread(scene.server.seconds_until_healthy, math.inf)
            await asyncio.sleep(2)
            with suppress(ValueError, psutil.NoSuchProcess):
                scene.process(_WORKER).kill()


async def _freeze_worker(scene: Scene) -> None:
    async with scene.load(_SMALL, 4), frozen(scene.process(_WORKER)):
        await asyncio.Event().wait()


async def _freeze_engine(scene: Scene) -> None:
    async with frozen(scene.process(ENGINE)):
        await asyncio.Event().wait()


async def _read_nothing(scene: Scene) -> None:
    port = urlsplit(scene.url).port
    assert port is not None
    sent = http_request("/v1/completions", _BULKY)

    async def ask_on() -> None:
        while True:
            client = await SlowClient.connected(port, sent, reads=False)
            try:
                await until_cut([client], port, _SLOW_LIMIT_S)
            finally:
                client.reader.close()

    async with scene.load(_SMALL, 2):
        await asyncio.gather(*(ask_on() for _ in range(_NUM_SLOW)))


async def _kill_ingress(scene: Scene) -> None:
    # frozen, so that no answer ends before its ingress has not been heard of for long enough
    async with frozen(scene.process(_WORKER)), scene.load(_SMALL, 8):
        await asyncio.sleep(_OPENING_S)
        scene.process(_INGRESS).kill()
        await asyncio.Event().wait()


async def _lose_model(scene: Scene) -> None:
    hidden = scene.model.with_name("hidden")
    os.rename(scene.model, hidden)
    try:
        async with scene.load(_SMALL, 8):
            await asyncio.sleep(2)
            scene.process(ENGINE).kill()
            await asyncio.Event().wait()
    finally:
        os.rename(hidden, scene.model)


async def _end(scene: Scene) -> None:
    scene.server.close()
    await asyncio.Event().wait()


DRILLS: tuple[Drill, ...] = (
    Drill(
        name="128 clients of 664 tokens each, 2,048 slots of KV cache, no collector of traces",
        alerts=(
            "PagodaThrashing", "PagodaQueueAge", "PagodaSlowFirstToken",
            "PagodaRefusing", "PagodaTelemetryLost",
        ),
        act=_overload,
    ),
    Drill(
        name="64 clients of 201 tokens each, 2,048 slots of KV cache",
        alerts=("PagodaKVFull",),
        act=_fill,
    ),
    Drill(
        name="the worker frozen for 0.7 s of each 0.8 s (SIGSTOP)",
        alerts=("PagodaSlowTokens",),
        act=_stutter,
    ),
    Drill(
        name="the worker killed whenever it serves again (SIGKILL), no request resumed",
        alerts=("PagodaGangLost",),
        act=_kill_workers,
    ),
    Drill(
        name="the worker frozen with requests open, `step_deadline_s` 600",
        alerts=("PagodaStalled",),
        act=_freeze_worker,
    ),
    Drill(
        name="the engine replica frozen", alerts=("PagodaScrapeIncomplete",), act=_freeze_engine
    ),
    Drill(
        name="the engine replica killed and its model's folder gone, no request resumed",
        alerts=("PagodaNotReady", "PagodaErrors"),
        act=_lose_model,
    ),
    Drill(
        name="4 clients that read nothing of their answers beside 2 that do, `write_s` 5",
        alerts=("PagodaSlowClients",),
        act=_read_nothing,
    ),
    Drill(
        name="the ingress killed with 8 requests open, the worker frozen (SIGKILL)",
        alerts=("PagodaIngressLost",),
        act=_kill_ingress,
    ),
    Drill(name="all processes of the server ended", alerts=("PagodaAbsent",), act=_end),
)  # fmt: skip
