"""What is in the swap space outlives the processes that wrote it and is not computed again."""

import ctypes
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import ray

from engine.config import EngineConfig, ResumeConfig
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.replica.gang import GangOptions
from engine.runtime.replica.pin_at_start import LocalEngineHandle
from engine.runtime.replica.start import start_replica
from engine.runtime.replica.supervisor import Supervisor
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.types import SamplingParams, int32
from tests.engine.model.tiny import TinyModel
from tests.engine.runtime.serving import gang_of, generate, pids_of, until_lost

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster", "quick_restarts")]

_GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


_OPTIONS = GangOptions(num_cpus_per_rank=0.1)
_PROMPTS = [[start * 50 + i for i in range(32)] for start in range(3)]


def _config(tiny: TinyModel, num_slots: int = 60, **settings: Any) -> EngineConfig:
    """Not even two of the prompts fit the pool together."""
    config = tiny.config(**{"num_blocks": 10, "block_size": 4, "max_model_len": 40} | settings)
    return config.with_options(swap_bytes=num_slots * config.block_bytes)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_rebuilt_gang_finds_what_a_killed_one_has_saved(
    tiny: TinyModel, ranks: int
) -> None:
    """The first prompt is long gone from the pool when it comes again."""
    config = _config(tiny, tensor_parallel_size=ranks)
    supervisor = await start_replica(config, _OPTIONS, replica="a")
    async with _client_of(supervisor) as client:
        answers = [await generate(client, prompt, _GREEDY) for prompt in _PROMPTS]
        assert await generate(client, _PROMPTS[0], _GREEDY) == answers[0]
        # all full blocks but the one that holds the token to compute
        assert supervisor.stats.num_restored_tokens == 28
        await _kill_a_rank(supervisor)
        assert await generate(client, _PROMPTS[0], _GREEDY) == answers[0]
        assert supervisor.stats.num_restored_tokens == 28
        # another prompt finds nothing
        assert await generate(client, [*_PROMPTS[0][1:], 1], _GREEDY) != answers[0]
        assert supervisor.stats.num_restored_tokens == 28


async def test_a_request_that_goes_on_in_a_rebuilt_gang_restores_its_blocks(
    tiny: TinyModel,
) -> None:
    config = _config(tiny, 200, num_blocks=36, max_model_len=136, tensor_parallel_size=2)
    long = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    supervisor = await start_replica(config, _OPTIONS, replica="a")
    async with _client_of(supervisor) as client:
        expected = await generate(client, _PROMPTS[0], long)
        # they push the first one out of the pool
        for prompt in _PROMPTS[1:]:
            await generate(client, prompt, long)
        first_gang, pids = gang_of(supervisor), await pids_of(supervisor)
        tokens: list[int] = []
        async for delta in await client.submit(int32(_PROMPTS[0]), long):
            if not tokens:
                os.kill(pids[1], signal.SIGKILL)
            tokens += delta.tokens
        assert gang_of(supervisor) is not first_gang
        assert tokens == expected
        # the counts are those of the new gang: more than the prompt, since an answer is kept, too
        assert supervisor.stats.num_restored_tokens >= len(_PROMPTS[0])


async def test_a_byte_that_was_changed_meanwhile_costs_a_prefill_and_no_answer(
    tiny: TinyModel,
) -> None:
    config = _config(tiny)
    supervisor = await start_replica(config, _OPTIONS, replica="a")
    async with _client_of(supervisor) as client:
        answers = [await generate(client, prompt, _GREEDY) for prompt in _PROMPTS]
        [ref] = await _arenas_of(supervisor).refs()
        view = ray.get(ref).copy()
        _flip(ray.get(ref), config.block_bytes)
        assert (ray.get(ref) != view).sum() > 0
        assert await generate(client, _PROMPTS[0], _GREEDY) == answers[0]
        assert supervisor.stats.num_spoiled > 0
        assert await generate(client, _PROMPTS[0], _GREEDY) == answers[0]


async def test_the_memory_is_given_back_with_the_replica(tiny: TinyModel) -> None:
    supervisor = await start_replica(_config(tiny), _OPTIONS, replica="a")
    arenas = _arenas_of(supervisor)
    assert len(arenas._views) == 1
    await supervisor.close()
    assert (arenas._views, arenas._making) == ([], None)
    await supervisor.close()


@asynccontextmanager
async def _client_of(supervisor: Supervisor) -> AsyncIterator[RemoteEngineClient]:
    """A client that goes on after a loss; it and the replica are closed."""
    client = RemoteEngineClient(LocalEngineHandle(supervisor), resume=ResumeConfig())
    try:
        yield client
    finally:
        await client.close()
        await supervisor.close()


def _arenas_of(supervisor: Supervisor) -> SwapArenas:
    [close] = supervisor._close_last
    arenas = close.__self__  # type: ignore[attr-defined]
    assert isinstance(arenas, SwapArenas)
    return arenas


async def _kill_a_rank(supervisor: Supervisor) -> None:
    """And wait until it is noticed."""
    *ranks, _ = await pids_of(supervisor)
    os.kill(ranks[-1], signal.SIGKILL)
    await until_lost(supervisor)


def _flip(view: "np.ndarray[tuple[int], np.dtype[np.uint8]]", block_bytes: int) -> None:
    """Change a bit in each block."""
    start = -view.ctypes.data % 4096
    for slot in range(60):
        byte = ctypes.c_uint8.from_address(view.ctypes.data + start + slot * block_bytes + 5)
        byte.value ^= 1
