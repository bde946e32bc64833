import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from engine.errors import EngineError, Overloaded, PromptTooLong
from engine.runtime.client import RemoteEngineClient
from engine.runtime.gang import GangOptions, start_gang
from engine.runtime.supervisor import Supervisor
from engine.types import FinishReason, SamplingParams, int32
from tests.runtime import scripted

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class LocalHandle:
    """An `EngineHandle` to a supervisor in this process."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def submit(self, request: bytes) -> bytes:
        return self._supervisor.submit(request)

    async def abort(self, replica: str, request_ids: tuple[int, ...]) -> None:
        self._supervisor.abort(request_ids)

    async def renew(self, replica: str, client: int) -> None:
        self._supervisor.renew(client)

    def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        return self._supervisor.attach(client)

    async def is_ready(self) -> bool:
        return self._supervisor.is_healthy


@asynccontextmanager
async def serving(
    worker: str = "load_worker",
    *,
    lease_s: float = 5.0,
    step_deadline_s: float = 30.0,
    max_num_waiting: int = 1024,
) -> AsyncIterator[Supervisor]:
    before = asyncio.all_tasks()
    config = scripted.engine_config(max_num_waiting=max_num_waiting)
    gang = await start_gang(
        config,
        GangOptions(
            num_cpus_per_rank=0.1,
            worker_factory=f"tests.runtime.scripted:{worker}",
            step_deadline_s=step_deadline_s,
        ),
    )
    supervisor = Supervisor(
        gang, config, replica="a", step_deadline_s=step_deadline_s, lease_s=lease_s, idle_s=0.1
    )
    try:
        yield supervisor
    finally:
        supervisor.close()
    assert asyncio.all_tasks() <= before
    assert not Path(gang._folder).exists()  # noqa: ASYNC240
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
async def client_of(supervisor: Supervisor) -> AsyncIterator[RemoteEngineClient]:
    client = RemoteEngineClient(LocalHandle(supervisor), renew_period_s=0.02)
    try:
        yield client
    finally:
        await client.close()


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


async def generate(client: RemoteEngineClient, prompt: list[int], max_tokens: int) -> list[int]:
    stream = await client.submit(int32(prompt), params(max_tokens))
    return [token async for delta in stream for token in delta.tokens]


async def pid_of(actor: Any) -> int:
    pid: int = await actor.__ray_call__.remote(lambda _: os.getpid())
    return pid


async def request_that_may_leave(
    client: RemoteEngineClient, dice: random.Random, prompt: list[int], max_tokens: int
) -> None:
    """Read a request to its end, to an abort or to a cancellation; each token must be right."""
    expected = scripted.continuation(prompt, max_tokens)
    leave_after = dice.randrange(2 * max_tokens)
    stream = await client.submit(int32(prompt), params(max_tokens))
    tokens: list[int] = []
    try:
        async for delta in stream:
            tokens += delta.tokens
            if len(tokens) > leave_after and dice.random() < 0.5:
                await stream.abort()
            elif len(tokens) > leave_after:
                raise asyncio.CancelledError
    finally:
        await stream.abort()
    assert tokens == expected[: len(tokens)]


async def test_after_many_requests_that_end_in_any_way_every_block_is_free() -> None:
    dice = random.Random(0)
    async with serving("load_slow_worker") as supervisor:
        async with client_of(supervisor) as first, client_of(supervisor) as second:
            requests = [
                asyncio.create_task(
                    request_that_may_leave(
                        dice.choice([first, second]),
                        dice,
                        [dice.randrange(1000) for _ in range(dice.randint(1, 40))],
                        dice.randint(1, 30),
                    )
                )
                for _ in range(200)
            ]
            for request in dice.sample(requests, 20):
                asyncio.get_running_loop().call_later(dice.random(), request.cancel)
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            failed = [o for o in outcomes if o is not None]
            assert all(isinstance(o, asyncio.CancelledError) for o in failed)
            assert len(failed) < 150
            assert await generate(first, [1, 2], 3) == scripted.continuation([1, 2], 3)
        assert supervisor.num_open == 0
        usage = supervisor.stats.usage
        assert usage.free == usage.total
        await supervisor.check_health()


async def test_the_scheduler_process_has_no_torch() -> None:
    async with serving() as supervisor:
        scheduler = supervisor._gang._actors[0]
        modules = await scheduler.__ray_call__.remote(lambda _: sorted(sys.modules))
        assert "engine.core.scheduler" in modules
        assert "torch" not in modules


async def test_refusals_come_at_once() -> None:
    async with (
        serving("load_slow_worker", max_num_waiting=2) as supervisor,
        client_of(supervisor) as client,
    ):
        with pytest.raises(PromptTooLong):
            await client.submit(int32([1] * 500), params(1))
        streams = [await client.submit(int32([1]), params(50)) for _ in range(2)]
        with pytest.raises(Overloaded):
            await client.submit(int32([1]), params(50))
        for stream in streams:
            await stream.abort()


async def test_a_client_that_vanishes_has_its_requests_aborted() -> None:
    async with serving("load_slow_worker", lease_s=0.2) as supervisor:
        async with client_of(supervisor) as client:
            await client.submit(int32([1]), params(190))
        # the client has closed without a word
        assert supervisor.num_open == 1
        async with client_of(supervisor) as other:
            while supervisor.num_open:
                await generate(other, [5], 2)
            await generate(other, [5], 2)
            assert supervisor.stats.usage.free == supervisor.stats.usage.total


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_killed_process_fails_every_open_request_and_the_health_check(
    victim: int,
) -> None:
    async with serving("load_slow_worker") as supervisor:
        async with client_of(supervisor) as client:
            streams = [await client.submit(int32([1]), params(190)) for _ in range(3)]
            await anext(aiter(streams[0]))
            os.kill(await pid_of(supervisor._gang._actors[victim]), signal.SIGKILL)
            for stream in streams:
                reasons = [delta.finish_reason async for delta in stream]
                assert reasons[-1] is FinishReason.ERROR
            with pytest.raises(EngineError):
                await client.submit(int32([1]), params(1))
        await death_of(supervisor.check_health)


@pytest.mark.parametrize("token", [scripted.CRASH, scripted.FAIL, scripted.HANG])
async def test_a_worker_that_fails_or_hangs_ends_the_gang(token: int) -> None:
    async with serving(step_deadline_s=0.5) as supervisor:
        async with client_of(supervisor) as client:
            stream = await client.submit(int32([token]), params(5))
            reasons = [delta.finish_reason async for delta in stream]
            assert reasons == [FinishReason.ERROR]
            assert not supervisor.is_healthy
        await death_of(supervisor.check_health)


async def test_a_worker_that_cannot_load_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="no weights here"):
        async with serving("load_nothing"):
            pass
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240
