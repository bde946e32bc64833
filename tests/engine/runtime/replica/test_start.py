"""What a gang does before its replica takes requests: a token, then the pinned prefixes."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig, PrefixConfig
from engine.errors import EngineError
from engine.runtime.replica import start
from engine.runtime.replica.gang import GangOptions
from engine.runtime.replica.start import compute_first_token, start_replica
from engine.runtime.replica.supervisor import Supervisor
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.types import FinishReason, Request
from tests.fakes import scripted_worker as scripted
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.scripted_gang import Replica, ScriptedGang

LENGTH, ERROR = FinishReason.LENGTH, FinishReason.ERROR
CONFIG = scripted.engine_config(pinned_prefix_share=0.2)


def prefix(name: str) -> PrefixConfig:
    return PrefixConfig(name=name, token_ids=(1, 2, 3, 4))


async def begin(work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    task = asyncio.create_task(work)
    await settle()
    return task


async def answer(replica: Replica, reason: FinishReason) -> Request:
    """End the one request that the scheduler has."""
    [command] = replica.commands()
    assert isinstance(command, Request)
    await replica.step((command.request_id, -1, reason))
    return command


@pytest.mark.parametrize(("ends", "token"), [((), 0), ((7, 8), 7)])
async def test_the_first_token_is_asked_for_like_any_other(
    replica: Replica, ends: tuple[int, ...], token: int
) -> None:
    config = replace(CONFIG, model=replace(CONFIG.model, eos_token_ids=ends))
    task = await begin(compute_first_token(replica.supervisor, config))
    request = await answer(replica, LENGTH)
    assert (request.prompt.tolist(), request.sampling.max_tokens) == ([token], 1)
    assert request.sampling.ignore_eos
    await task


async def test_a_gang_without_a_first_token_is_not_ready(replica: Replica) -> None:
    task = await begin(compute_first_token(replica.supervisor, CONFIG))
    await answer(replica, ERROR)
    with pytest.raises(EngineError, match="gave no token: ERROR"):
        await task


class Started(Replica):
    """A replica as `start_replica` makes it, of scripted gangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, config: EngineConfig) -> None:
        self.gangs: list[ScriptedGang] = []
        self.arenas: list[SwapArenas] = []
        self.peers = [prefix("b"), prefix("c")]
        monkeypatch.setattr(start, "start_gang", self._start_gang)
        self.starting_up = asyncio.create_task(
            start_replica(config, GangOptions(), replica="a", pins_of_peers=self._pins_of_peers)
        )

    async def _start_gang(
        self, config: EngineConfig, options: GangOptions, arenas: SwapArenas
    ) -> ScriptedGang:
        self.arenas.append(arenas)
        self.gangs.append(ScriptedGang())
        return self.gang

    async def _pins_of_peers(self) -> list[PrefixConfig]:
        return self.peers

    async def answered(self, count: int) -> list[str]:
        """Names of the prefixes that are computed next, in order; empty for no prefix."""
        names = []
        for _ in range(count):
            request = await answer(self, LENGTH)
            names.append(request.pin.name if request.pin is not None else "")
        return names


async def test_a_replica_is_ready_when_its_token_and_all_its_prefixes_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(monkeypatch, replace(CONFIG, pinned_prefixes=(prefix("a"),)))
    await settle()
    assert await started.answered(3) == ["", "a", "b"]
    assert not started.starting_up.done()
    assert await started.answered(1) == ["c"]
    supervisor: Supervisor = await started.starting_up
    assert supervisor.is_healthy
    await supervisor.close()


async def test_a_death_before_that_begins_it_all_again(
    monkeypatch: pytest.MonkeyPatch, clock: LoopClock
) -> None:
    started = Started(monkeypatch, replace(CONFIG, pinned_prefixes=(prefix("a"),)))
    started.peers = []
    await settle()
    assert await started.answered(1) == [""]
    started.gang.die("rank 0")
    for _ in range(4):
        await clock.advance(1.0)
    assert await started.answered(2) == ["", "a"]
    supervisor = await started.starting_up
    # what the lost gang has left in the swap space is there for the next one
    first, second = started.arenas
    assert first is second
    assert first._making is not None
    await supervisor.close()
    assert first._making is None


async def test_a_start_that_fails_gives_the_swap_space_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = Started(monkeypatch, CONFIG)
    await settle()
    started.starting_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await started.starting_up
    assert started.arenas[0]._making is None
