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

from engine.errors import ConfigError, EngineError, Overloaded, PromptTooLong
from engine.runtime.client import RemoteEngineClient
from engine.runtime.gang import GangOptions, start_gang
from engine.runtime.messages import REQUESTS, VERDICTS
from engine.runtime.supervisor import ClientLimits, Supervisor
from engine.types import ALL_CHOICES, FinishReason, Request, SamplingParams, int32
from tests.runtime import scripted

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


IMPATIENT = ClientLimits(idle_s=0.1)


class LocalHandle:
    """An `EngineHandle` to a supervisor in this process."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def submit(self, client: int, request: bytes) -> bytes:
        return self._supervisor.submit(client, request)

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        self._supervisor.abort(request_ids, choice)

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        self._supervisor.renew(client, received_bytes)

    def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        return self._supervisor.attach(client)

    async def is_ready(self) -> bool:
        return self._supervisor.is_healthy


class LosingHandle(LocalHandle):
    """Every verdict is lost on its way."""

    async def submit(self, client: int, request: bytes) -> bytes:
        await super().submit(client, request)
        raise EngineError("no answer in time")


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
            worker_factory=f"tests.runtime.scripted:{worker}",
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
    supervisor: Supervisor, handle: type[LocalHandle] = LocalHandle
) -> AsyncIterator[RemoteEngineClient]:
    client = RemoteEngineClient(handle(supervisor), renew_period_s=0.02)
    try:
        yield client
    finally:
        await client.close()


def params(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, n=n)


def is_empty(supervisor: Supervisor) -> bool:
    usage = supervisor.stats.usage
    return usage.free + usage.cached == usage.total and not usage.swapped


async def until_empty(supervisor: Supervisor, client: RemoteEngineClient) -> None:
    """Wait until no request is open and every block has come back."""
    async with asyncio.timeout(20):
        while supervisor.num_open or not is_empty(supervisor):
            await generate(client, [5], 2)


async def generate(client: RemoteEngineClient, prompt: list[int], max_tokens: int) -> list[int]:
    stream = await client.submit(int32(prompt), params(max_tokens))
    return [token async for delta in stream for token in delta.tokens]


async def pid_of(actor: Any) -> int:
    pid: int = await actor.__ray_call__.remote(lambda _: os.getpid())
    return pid


async def request_that_may_leave(
    client: RemoteEngineClient, dice: random.Random, prompt: list[int], sampling: SamplingParams
) -> None:
    """Read a request to its end, to an abort or to a cancellation; each token must be right."""
    leave_after = dice.randrange(2 * sampling.max_tokens)
    stream = await client.submit(int32(prompt), sampling)
    tokens: dict[int, list[int]] = {choice: [] for choice in range(sampling.n)}
    ends: list[int] = []
    try:
        async for delta in stream:
            tokens[delta.choice] += delta.tokens
            ends += [delta.choice] * (delta.finish_reason is not FinishReason.NONE)
            if len(tokens[0]) > leave_after and dice.random() < 0.5:
                await stream.abort()
            elif len(tokens[0]) > leave_after:
                raise asyncio.CancelledError
    finally:
        await stream.abort()
    assert sorted(ends) == list(range(sampling.n))
    for choice, got in tokens.items():
        expected = scripted.continuation(prompt, sampling.max_tokens, choice)
        assert sampling.beam_width or got == expected[: len(got)]


def any_sampling(dice: random.Random) -> SamplingParams:
    n = dice.randint(1, 4)
    width = dice.randint(n, 4) if dice.random() < 0.2 else 0
    return SamplingParams(max_tokens=dice.randint(1, 30), n=n, beam_width=width)


@pytest.mark.parametrize("num_swap_slots", [0, 64])
async def test_after_many_requests_that_end_in_any_way_every_block_is_free(
    num_swap_slots: int,
) -> None:
    dice = random.Random(0)
    async with serving("load_slow_worker", num_swap_slots=num_swap_slots) as supervisor:
        async with client_of(supervisor) as first, client_of(supervisor) as second:
            requests = [
                asyncio.create_task(
                    request_that_may_leave(
                        dice.choice([first, second]),
                        dice,
                        [dice.randrange(1000) for _ in range(dice.randint(1, 40))],
                        any_sampling(dice),
                    )
                )
                for _ in range(200)
            ]
            for request in dice.sample(requests, 20):
                asyncio.get_running_loop().call_later(dice.random(), request.cancel)
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            failed = [o for o in outcomes if o is not None]
            assert all(isinstance(o, asyncio.CancelledError) for o in failed), failed
            assert len(failed) < 150
            await until_empty(supervisor, first)
            assert await generate(first, [1, 2], 3) == scripted.continuation([1, 2], 3)
        assert (supervisor.num_open, supervisor.num_open_choices) == (0, 0)
        assert supervisor.stats.num_recomputed + supervisor.stats.num_swapped_out > 0
        await supervisor.check_health()


async def test_a_request_whose_verdict_is_lost_does_not_run_on() -> None:
    limits = ClientLimits(lease_s=0.5, idle_s=0.1)
    async with (
        serving("load_slow_worker", limits=limits) as supervisor,
        client_of(supervisor, LosingHandle) as losing,
        client_of(supervisor) as other,
    ):
        with pytest.raises(EngineError, match="no answer"):
            await losing.submit(int32([1]), params(190))
        assert supervisor.num_open == 1
        await until_empty(supervisor, other)


async def test_an_id_that_is_open_is_refused() -> None:
    async with serving("load_slow_worker") as supervisor:
        request = REQUESTS.encode(Request(request_id=7, prompt=int32([1]), sampling=params(190)))
        answers = [VERDICTS.decode(supervisor.submit(client, request)) for client in (1, 2)]
        assert answers[0].refusal is None
        assert answers[1].refusal is not None
        assert "open already" in answers[1].refusal.message


async def take_without_reading(supervisor: Supervisor) -> None:
    taken = 0
    async for batch in supervisor.attach(1):
        taken += len(batch)
        assert taken <= 20_000
        supervisor.renew(1, 0)


async def test_a_client_that_does_not_read_is_given_up() -> None:
    limits = ClientLimits(idle_s=0.1, max_undelivered_bytes=20_000)
    async with (
        serving("load_slow_worker", limits=limits) as supervisor,
        client_of(supervisor) as other,
    ):
        for request_id in range(3):
            request = Request(request_id=request_id, prompt=int32([1]), sampling=params(190))
            supervisor.submit(1, REQUESTS.encode(request))
        # what takes the messages here is no proof that anybody has read them
        with pytest.raises(EngineError, match="slow"):
            await take_without_reading(supervisor)
        assert supervisor.num_slow_clients == 1
        assert supervisor.num_open == 0
        await until_empty(supervisor, other)
        assert supervisor.num_slow_clients == 1


async def test_junk_for_the_scheduler_fails_what_is_open() -> None:
    async with serving("load_slow_worker") as supervisor:
        async with client_of(supervisor) as client:
            stream = await client.submit(int32([1]), params(100, n=2))
            await anext(aiter(stream))
            supervisor._channel.send(b"junk")
            ends = [d.choice async for d in stream if d.finish_reason is FinishReason.ERROR]
            assert sorted(ends) == [0, 1]
        await death_of(supervisor.check_health)


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
    limits = ClientLimits(lease_s=0.2, idle_s=0.1)
    async with serving("load_slow_worker", limits=limits) as supervisor:
        async with client_of(supervisor) as client:
            await client.submit(int32([1]), params(80, n=3))
        # the client has closed without a word
        assert (supervisor.num_open, supervisor.num_open_choices) == (1, 3)
        async with client_of(supervisor) as other:
            await until_empty(supervisor, other)
        assert supervisor.num_slow_clients == 0


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_killed_process_fails_every_open_request_and_the_health_check(
    victim: int,
) -> None:
    async with serving("load_slow_worker") as supervisor:
        async with client_of(supervisor) as client:
            streams = [await client.submit(int32([1]), params(100, n=2)) for _ in range(3)]
            await anext(aiter(streams[0]))
            os.kill(await pid_of(supervisor._gang._actors[victim]), signal.SIGKILL)
            for stream in streams:
                ends = [d.choice async for d in stream if d.finish_reason is FinishReason.ERROR]
                assert sorted(ends) == [0, 1]
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
    with pytest.raises(ConfigError, match=r"^no weights here$"):
        async with serving("load_nothing"):
            pass
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240
