import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from engine.config import PrefixConfig
from engine.errors import ConfigError, EngineError
from engine.runtime.messages import OUTPUTS, PREFIXES, REQUESTS, VERDICTS, Withdrawal
from engine.runtime.outputs import failure
from engine.runtime.replica.pin_at_start import (
    LocalEngineHandle,
    pin_configured_prefixes,
    pin_prefixes_of_peers,
)
from engine.types import (
    ALL_CHOICES,
    FinishReason,
    PinnedPrefix,
    Refusal,
    Request,
    SamplingParams,
    int32,
    int64,
)
from tests.fakes.engine_handle import STATS
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.scripted_gang import LIMITS, Replica
from tests.fakes.stream_reader import StreamReader

LENGTH, ERROR = FinishReason.LENGTH, FinishReason.ERROR


def prefix(name: str, *, salt: bytes = b"", ttl_s: float | None = None) -> PrefixConfig:
    return PrefixConfig(name=name, token_ids=(1, 2, 3, 4), ttl_s=ttl_s, salt=salt)


def pinned(name: str, *, salt: bytes = b"") -> PinnedPrefix:
    return PinnedPrefix(
        salt=salt,
        name=name,
        tokens=int32([1, 2, 3, 4]),
        num_blocks=1,
        is_warm=True,
        expires_s=None,
    )


@pytest.fixture
async def pinning(replica: Replica) -> AsyncIterator["Pinning"]:
    before = asyncio.all_tasks()
    yield Pinning(replica)
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


class Pinning:
    """Prefixes that are being pinned on a replica, and the scheduler's answers."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    async def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        await settle()
        return task

    def requested(self) -> Request:
        """The one prefix that the scheduler is to compute now."""
        [command] = self.replica.commands()
        assert isinstance(command, Request)
        return command

    async def answer(self, reason: FinishReason) -> Request:
        request = self.requested()
        await self.replica.step((request.request_id, -1, reason))
        return request

    async def refuse(self) -> None:
        why = Refusal(code="invalid_value", message="no room", param="prompt")
        output = failure([(self.requested().request_id, 0)], STATS, why)
        self.replica.gang.scheduler.send(OUTPUTS.encode(output))
        await settle()


async def test_prefixes_are_computed_one_after_the_other(pinning: Pinning) -> None:
    prefixes = [prefix("a", salt=b"one", ttl_s=9.0), prefix("b")]
    task = await pinning.start(pin_configured_prefixes(pinning.replica.supervisor, prefixes))
    first = await pinning.answer(LENGTH)
    assert (first.prompt.tolist(), first.salt) == ([1, 2, 3, 4], b"one")
    assert first.pin is not None
    assert (first.pin.name, first.pin.ttl_s) == ("a", 9.0)
    assert not task.done()
    second = await pinning.answer(LENGTH)
    assert second.pin is not None
    assert (second.pin.name, second.pin.ttl_s, second.salt) == ("b", None, b"")
    await task


async def test_a_prefix_that_cannot_be_pinned_is_an_error_of_the_configuration(
    pinning: Pinning,
) -> None:
    supervisor = pinning.replica.supervisor
    task = await pinning.start(pin_configured_prefixes(supervisor, [prefix("a"), prefix("b")]))
    await pinning.refuse()
    with pytest.raises(ConfigError, match="'a' cannot be pinned: no room"):
        await task
    task = await pinning.start(pin_configured_prefixes(supervisor, [prefix("a")]))
    await pinning.answer(ERROR)
    with pytest.raises(ConfigError, match="'a' cannot be computed"):
        await task


async def test_the_end_of_the_engine_ends_the_warm_up(pinning: Pinning) -> None:
    task = await pinning.start(pin_configured_prefixes(pinning.replica.supervisor, [prefix("a")]))
    await pinning.replica.supervisor.close()
    with pytest.raises(EngineError, match="stopped"):
        await task


async def test_of_the_peers_prefixes_those_are_pinned_once_that_are_missing(
    pinning: Pinning,
) -> None:
    await pinning.replica.step(pinned=(pinned("a", salt=b"one"),))
    peers = [
        prefix("a", salt=b"one"),
        prefix("a", salt=b"two"),
        prefix("b"),
        prefix("a", salt=b"two", ttl_s=5.0),
    ]
    task = await pinning.start(pin_prefixes_of_peers(pinning.replica.supervisor, peers))
    request = await pinning.answer(LENGTH)
    assert request.pin is not None
    assert (request.pin.name, request.salt) == ("a", b"two")
    request = await pinning.answer(LENGTH)
    assert request.pin is not None
    assert request.pin.name == "b"
    await task


async def test_what_cannot_be_pinned_of_the_peers_prefixes_is_left_out(
    pinning: Pinning, caplog: pytest.LogCaptureFixture
) -> None:
    peers = [prefix("a"), prefix("b")]
    task = await pinning.start(pin_prefixes_of_peers(pinning.replica.supervisor, peers))
    await pinning.refuse()
    await pinning.answer(LENGTH)
    await task
    assert caplog.text.count("prefix_not_adopted reason=pinned_prefixes: 'a'") == 1


async def test_the_local_handle_passes_everything_to_its_supervisor(
    replica: Replica, clock: LoopClock
) -> None:
    handle = LocalEngineHandle(replica.supervisor)
    assert await handle.replicas() == ["a"]
    request = Request(
        request_id=7, prompt=int32([1]), sampling=SamplingParams(max_tokens=5), salt=b"one"
    )
    verdict = VERDICTS.decode(await handle.submit(1, REQUESTS.encode(request)))
    assert (verdict.replica, verdict.refusal) == ("a", None)
    await handle.abort("a", (7,), 2)
    await handle.abort("a", (7, 8))
    await handle.release_prefix(b"one", "a")
    assert replica.commands() == [
        request,
        Withdrawal(int64([7]), int32([2])),
        Withdrawal(int64([7, 8]), int32([ALL_CHOICES] * 2)),
        Withdrawal(int64(), int32(), ((b"one", "a"),)),
    ]
    await replica.step(pinned=(pinned("a", salt=b"one"),))
    [prefixes] = await handle.prefixes(b"one")
    assert [info.name for info in PREFIXES.decode(prefixes)] == ["a"]
    assert await handle.is_ready()
    assert await handle.max_model_len() == replica.supervisor.max_model_len == 200
    reader = StreamReader(handle.attach("a", 1))
    for _ in range(3):
        await clock.advance(0.8 * LIMITS.lease_s)
        await handle.renew("a", 1, 0)
    assert not reader.has_ended
    replica.gang.die("rank 0")
    await settle()
    assert not await handle.is_ready()
