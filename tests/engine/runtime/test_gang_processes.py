import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from engine.config import PrefixConfig
from engine.errors import ConfigError, EngineError, Overloaded, PromptTooLong
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.messages import PINS, REQUESTS, VERDICTS
from engine.runtime.replica.client_session import ClientLimits
from engine.runtime.replica.pin_at_start import (
    LocalEngineHandle,
    pin_configured_prefixes,
    pin_prefixes_of_peers,
)
from engine.runtime.replica.supervisor import Supervisor
from engine.types import FinishReason, Request, SamplingParams, int32
from tests.engine.runtime.serving import (
    client_of,
    gang_of,
    generate,
    granting,
    params,
    serving,
    until_empty,
)
from tests.fakes import scripted_worker as scripted

pytestmark = [
    pytest.mark.ray,
    pytest.mark.usefixtures("ray_cluster"),
    # that of the replica which tests share
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow_replica(ray_cluster: None) -> AsyncIterator[Supervisor]:
    async with serving("load_slow_worker") as supervisor:
        yield supervisor


@pytest_asyncio.fixture(loop_scope="module")
async def shared(slow_replica: Supervisor) -> AsyncIterator[Supervisor]:
    """A replica that a test leaves as it was: no request is open, and every block is free."""
    yield slow_replica
    async with client_of(slow_replica) as client:
        await until_empty(slow_replica, client)
    assert (slow_replica.num_open, slow_replica.num_open_choices) == (0, 0)
    slow_replica.check_health()


class LosingHandle(LocalEngineHandle):
    """Every verdict is lost on its way."""

    async def submit(
        self, client: int, request: bytes, replica: str | None = None, *, avoid: str | None = None
    ) -> bytes:
        await super().submit(client, request, replica)
        raise EngineError("no answer in time")


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


@pytest.mark.parametrize("num_swap_blocks", [0, 64])
async def test_after_many_requests_that_end_in_any_way_every_block_is_free(
    num_swap_blocks: int,
) -> None:
    dice = random.Random(0)
    async with serving("load_slow_worker", num_swap_blocks=num_swap_blocks) as supervisor:
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
                for _ in range(100)
            ]
            for request in dice.sample(requests, 10):
                asyncio.get_running_loop().call_later(dice.random(), request.cancel)
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            failed = [o for o in outcomes if o is not None]
            assert all(isinstance(o, asyncio.CancelledError) for o in failed), failed
            assert len(failed) < 75
            await until_empty(supervisor, first)
            assert await generate(first, [1, 2], params(3)) == scripted.continuation([1, 2], 3)
        assert (supervisor.num_open, supervisor.num_open_choices) == (0, 0)
        assert supervisor.stats.num_recomputed + supervisor.stats.num_swapped_out > 0
        supervisor.check_health()


async def test_a_request_whose_verdict_is_lost_does_not_run_on(shared: Supervisor) -> None:
    limits = ClientLimits(lease_s=0.5, idle_s=0.1)
    with granting(shared, limits):
        async with client_of(shared, LosingHandle) as losing, client_of(shared) as other:
            with pytest.raises(EngineError, match="no answer"):
                await losing.submit(int32([1]), params(190))
            assert shared.num_open == 1
            await until_empty(shared, other)


async def test_an_id_that_is_open_is_refused(shared: Supervisor) -> None:
    request = REQUESTS.encode(Request(request_id=7, prompt=int32([1]), sampling=params(190)))
    # nobody reads the answer to the first one
    with granting(shared, ClientLimits(lease_s=0.2)):
        answers = [VERDICTS.decode(shared.submit(client, request)) for client in (8, 9)]
    assert answers[0].refusal is None
    assert answers[1].refusal is not None
    assert "open already" in answers[1].refusal.message


async def take_without_reading(supervisor: Supervisor) -> None:
    taken = 0
    async for batch in supervisor.attach(1):
        taken += len(batch)
        assert taken <= 20_000
        supervisor.renew(1, 0)


async def test_requests_whose_client_does_not_read_end(
    shared: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ClientLimits(idle_s=0.1, window_bytes=2_000, max_request_bytes=2_000)
    with granting(shared, limits):
        async with client_of(shared) as other:
            for request_id in range(3):
                request = Request(request_id=request_id, prompt=int32([1]), sampling=params(190))
                shared.submit(1, REQUESTS.encode(request))
            # what takes the messages here is no proof that anybody has read them
            taking = asyncio.create_task(take_without_reading(shared))
            await until_empty(shared, other)
            assert shared.num_open == 0
            taking.cancel()
    assert caplog.text.count("request_unread") == 3
    assert "client_lost" not in caplog.text


async def test_the_scheduler_process_has_no_torch(shared: Supervisor) -> None:
    scheduler = gang_of(shared)._scheduler.actor
    modules = await scheduler.__ray_call__.remote(lambda _: sorted(sys.modules))
    assert "engine.core.scheduler" in modules
    assert "torch" not in modules


async def test_refusals_come_at_once() -> None:
    async with (
        serving("load_slow_worker", max_num_waiting=2, ranks=1) as supervisor,
        client_of(supervisor) as client,
    ):
        with pytest.raises(PromptTooLong):
            await client.submit(int32([1] * 500), params(1))
        streams = [await client.submit(int32([1]), params(50)) for _ in range(2)]
        with pytest.raises(Overloaded):
            await client.submit(int32([1]), params(50))
        for stream in streams:
            await stream.abort()


async def test_a_client_that_vanishes_has_its_requests_aborted(
    shared: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    with granting(shared, ClientLimits(lease_s=0.2, idle_s=0.1)):
        async with client_of(shared) as client:
            await client.submit(int32([1]), params(80, n=3))
        # the client has closed without a word
        assert (shared.num_open, shared.num_open_choices) == (1, 3)
        async with client_of(shared) as other:
            await until_empty(shared, other)
    assert caplog.text.count("client_lost") == caplog.text.count("reason=silent") == 1


async def test_a_worker_that_cannot_load_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^no weights here$"):
        async with serving("load_nothing"):
            pass
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


async def test_prefixes_are_pinned_before_the_first_request_and_listed_by_tenant() -> None:
    prefixes = [
        PrefixConfig(name=name, token_ids=(1,) * 9, ttl_s=ttl_s, salt=b"one")
        for name, ttl_s in (("a", None), ("b", 60.0))
    ]
    async with (
        serving(pinned_prefix_share=0.2, ranks=1) as supervisor,
        client_of(supervisor) as client,
    ):
        await pin_configured_prefixes(supervisor, prefixes)
        first, second = await client.prefixes(salt=b"one")
        assert (first.name, first.num_tokens, first.is_warm, first.ttl_s) == ("a", 8, True, None)
        assert second.ttl_s is not None
        assert 0 < second.ttl_s <= 60
        assert await client.prefixes(salt=b"two") == []
        stream = await client.submit(int32([1] * 9), params(2), salt=b"one")
        assert sum([delta.num_cached async for delta in stream]) == 8
        with pytest.raises(ConfigError, match=r"'a' cannot be pinned.*other tokens"):
            await pin_configured_prefixes(
                supervisor, [PrefixConfig(name="a", token_ids=(2,) * 9, salt=b"one")]
            )
        pins = PINS.decode(supervisor.pins())
        assert [(pin.name, pin.token_ids, pin.salt) for pin in pins] == [
            (name, (1,) * 8, b"one") for name in "ab"
        ]
        # what is held already is left as it is, and what has no room is left out
        peers = [replace(pins[0], token_ids=(3,) * 8), replace(pins[1], name="c", ttl_s=5.0)]
        await pin_prefixes_of_peers(
            supervisor, [*peers, PrefixConfig(name="d", token_ids=tuple(range(80)))]
        )
        *held, adopted = await client.prefixes(salt=b"one")
        assert [info.name for info in held] == ["a", "b"]
        assert adopted.name == "c"
        assert adopted.ttl_s is not None
        assert 0 < adopted.ttl_s <= 5
        assert await client.prefixes() == []
