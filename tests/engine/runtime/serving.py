"""Real engine replicas inside the test: a gang of Ray actors, its supervisor, clients."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import ray

from engine.config import ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.replica.client_session import ClientLimits
from engine.runtime.replica.gang import GangOptions, start_gang
from engine.runtime.replica.pin_at_start import LocalEngineHandle
from engine.runtime.replica.supervisor import Supervisor
from engine.types import SamplingParams, int32
from tests.fakes import scripted_worker as scripted

IMPATIENT = ClientLimits(idle_s=0.1)


@asynccontextmanager
async def serving(
    worker: str = "load_worker",
    *,
    step_deadline_s: float = 30.0,
    limits: ClientLimits = IMPATIENT,
    **settings: Any,
) -> AsyncIterator[Supervisor]:
    before = asyncio.all_tasks()
    config = scripted.engine_config(**settings)
    gang = await start_gang(
        config,
        GangOptions(
            num_cpus_per_rank=0.1,
            worker_factory=f"tests.fakes.scripted_worker:{worker}",
            step_deadline_s=step_deadline_s,
        ),
    )
    supervisor = Supervisor(
        gang, config, replica="a", step_deadline_s=step_deadline_s, limits=limits
    )
    try:
        yield supervisor
    finally:
        supervisor.close()
    assert asyncio.all_tasks() <= before
    assert not gang._folder.path.exists()
    for actor in gang._actors:
        await death_of(actor.ping.remote)


async def death_of(ask: Callable[[], Awaitable[Any]]) -> None:
    """Ask until the answer is that an actor is dead: killing takes effect a little later."""

    async def ask_for_ever() -> None:
        while True:
            with suppress(EngineError):
                await ask()

    with pytest.raises(ray.exceptions.RayActorError):
        await asyncio.wait_for(ask_for_ever(), 10)


@asynccontextmanager
async def client_of(
    supervisor: Supervisor, handle: type[LocalEngineHandle] = LocalEngineHandle
) -> AsyncIterator[RemoteEngineClient]:
    client = RemoteEngineClient(
        handle(supervisor),
        # what is lost fails, so that tests see it
        resume=ResumeConfig(resume_timeout_s=0.0, max_resumes=0),
        renew_period_s=0.02,
    )
    try:
        yield client
    finally:
        await client.close()


def params(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, n=n)


async def generate(
    client: RemoteEngineClient, prompt: list[int], sampling: SamplingParams
) -> list[int]:
    stream = await client.submit(int32(prompt), sampling)
    return [token async for delta in stream for token in delta.tokens]


async def until_empty(supervisor: Supervisor, client: RemoteEngineClient) -> None:
    """Wait until no request is open and every block has come back."""
    async with asyncio.timeout(20):
        while supervisor.num_open or not _is_empty(supervisor):
            await generate(client, [5], params(2))


def _is_empty(supervisor: Supervisor) -> bool:
    usage = supervisor.stats.usage
    return usage.free + usage.cached == usage.total and not usage.swapped
