"""Real engine replicas inside the test: a gang of Ray actors, its supervisor, clients."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from engine.config import PrefixConfig, ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.replica.client_session import ClientLimits
from engine.runtime.replica.gang import SCHEDULER, Gang, GangOptions
from engine.runtime.replica.pin_at_start import LocalEngineHandle
from engine.runtime.replica.start import start_replica
from engine.runtime.replica.supervisor import Supervisor
from engine.types import SamplingParams, int32
from tests.fakes import scripted_worker as scripted

IMPATIENT = ClientLimits(idle_s=0.1)


@asynccontextmanager
async def serving(
    worker: str = "load_worker",
    *,
    limits: ClientLimits = IMPATIENT,
    health: Mapping[str, Any] = MappingProxyType({}),
    pins: tuple[PrefixConfig, ...] = (),
    **settings: Any,
) -> AsyncIterator[Supervisor]:
    """Args: health: options of `EngineConfig` about deadlines and attempts; pins: configured."""
    before = asyncio.all_tasks()
    config = replace(scripted.engine_config(**settings), pinned_prefixes=pins, **health)
    options = GangOptions(
        num_cpus_per_rank=0.1, worker_factory=f"tests.fakes.scripted_worker:{worker}"
    )
    supervisor = await start_replica(config, options, replica="a", limits=limits)
    try:
        yield supervisor
    finally:
        gang = gang_of(supervisor) if supervisor.is_healthy else None
        await supervisor.close()
    # a fixture ends in another task than it begins in
    assert asyncio.all_tasks() - {asyncio.current_task()} <= before
    if gang is not None:
        assert gang.ended() == [rank.name for rank in gang._ranks] + [SCHEDULER]
        assert not gang._folder.path.exists()


@contextmanager
def granting(supervisor: Supervisor, limits: ClientLimits) -> Iterator[None]:
    """Have a replica that several tests share grant this to the clients that come meanwhile."""
    sessions = supervisor._sessions
    before, sessions._limits = sessions._limits, limits
    try:
        yield
    finally:
        sessions._limits = before


def gang_of(supervisor: Supervisor) -> Gang:
    """The processes of a replica that serves."""
    watched = supervisor._keeper.gang
    assert watched is not None
    return watched._gang


async def pids_of(supervisor: Supervisor) -> list[int]:
    """Of the ranks, in order, and of the scheduler."""
    gang = gang_of(supervisor)
    ids = [await each.actor.process_id.remote() for each in (*gang._ranks, gang._scheduler)]
    return [each.pid for each in ids]


async def until_lost(supervisor: Supervisor) -> None:
    """Wait until the gang of now is found to be lost."""
    watched = supervisor._keeper.gang
    assert watched is not None
    async with asyncio.timeout(20):
        await asyncio.wait({watched.loss})


async def until_rebuilt(supervisor: Supervisor, client: RemoteEngineClient) -> None:
    """Wait until another gang than that of now gives right tokens."""
    async with asyncio.timeout(60):
        while True:
            try:
                tokens = await generate(client, [1, 2], params(3))
            except EngineError:
                # the gang is started, or was lost meanwhile
                supervisor.check_health()
                await asyncio.sleep(0.05)
            else:
                assert tokens == scripted.continuation([1, 2], 3)
                return


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
