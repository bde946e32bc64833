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
from tests.engine.runtime.serving import gang_of, generate, pids_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster", "quick_restarts")]

_GREEDY = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)


_OPTIONS = GangOptions(num_cpus_per_rank=0.1)
_PROMPTS = [[start * 50 + i for i in range(32)] for start in range(3)]
_NUM_SLOTS = 100


def _config(tiny: TinyModel, **settings: Any) -> EngineConfig:
    """Not even two of the prompts and their answers fit the pool together."""
    config = tiny.config(num_blocks=24, block_size=4, max_model_len=84, **settings)
    return config.with_options(swap_bytes=_NUM_SLOTS * config.block_bytes)


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
        first_gang = gang_of(supervisor)
        # a request goes on in the rebuilt gang with the blocks that it had
        assert await _killing(supervisor, client, _PROMPTS[0]) == answers[0]
        assert gang_of(supervisor) is not first_gang
        # the counts are those of the new gang: more than the prompt, since an answer is kept, too
        num_restored = supervisor.stats.num_restored_tokens
        assert num_restored >= len(_PROMPTS[0])
        # another prompt finds nothing
        assert await generate(client, [*_PROMPTS[0][1:], 1], _GREEDY) != answers[0]
        assert supervisor.stats.num_restored_tokens == num_restored
        for prompt, answer in zip(_PROMPTS[1:], answers[1:], strict=True):
            assert await generate(client, prompt, _GREEDY) == answer
        assert supervisor.stats.num_spoiled == 0
        # a byte that was changed meanwhile costs a prefill and no answer
        for ref in await _arenas_of(supervisor).refs():
            _flip(ray.get(ref), config.block_bytes)
        assert await generate(client, _PROMPTS[0], _GREEDY) == answers[0]
        assert supervisor.stats.num_spoiled > 0
        assert await generate(client, _PROMPTS[0], _GREEDY) == answers[0]


@asynccontextmanager
async def _client_of(supervisor: Supervisor) -> AsyncIterator[RemoteEngineClient]:
    """A client that goes on after a loss; it is closed, and the replica, which keeps no memory."""
    client = RemoteEngineClient(LocalEngineHandle(supervisor), resume=ResumeConfig())
    arenas = _arenas_of(supervisor)
    assert arenas._views
    try:
        yield client
    finally:
        await client.close()
        await supervisor.close()
    assert (arenas._views, arenas._making) == ([], None)
    # nor is it given back twice
    await supervisor.close()


def _arenas_of(supervisor: Supervisor) -> SwapArenas:
    [close] = supervisor._close_last
    arenas = close.__self__  # type: ignore[attr-defined]
    assert isinstance(arenas, SwapArenas)
    return arenas


async def _killing(
    supervisor: Supervisor, client: RemoteEngineClient, prompt: list[int]
) -> list[int]:
    """Generate, and kill the last rank as soon as there is a token."""
    *ranks, _ = await pids_of(supervisor)
    tokens: list[int] = []
    async for delta in await client.submit(int32(prompt), _GREEDY):
        if not tokens:
            os.kill(ranks[-1], signal.SIGKILL)
        tokens += delta.tokens
    return tokens


def _flip(view: "np.ndarray[tuple[int], np.dtype[np.uint8]]", block_bytes: int) -> None:
    """Change a bit in each block."""
    start = -view.ctypes.data % 4096
    for slot in range(_NUM_SLOTS):
        byte = ctypes.c_uint8.from_address(view.ctypes.data + start + slot * block_bytes + 5)
        byte.value ^= 1
