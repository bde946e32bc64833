"""What is in the swap space outlives the processes that wrote it and is not computed again."""

import ctypes
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import ray

from engine.config import EngineConfig
from engine.runtime.replica.gang import GangOptions, start_gang
from engine.runtime.replica.supervisor import Supervisor
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.types import SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.runtime.replica.test_gang_processes import pid_of
from tests.engine.runtime.serving import client_of, generate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

_GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


@asynccontextmanager
async def _serving(config: EngineConfig, arenas: SwapArenas) -> AsyncIterator[Supervisor]:
    gang = await start_gang(config, GangOptions(num_cpus_per_rank=0.1), arenas)
    supervisor = Supervisor(gang, config, replica="a", step_deadline_s=30.0)
    try:
        yield supervisor
    finally:
        supervisor.close()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_new_gang_finds_what_a_killed_one_has_saved(tiny: TinyModel, ranks: int) -> None:
    """Three prompts do not fit the pool together; the first is long gone when it comes again."""
    prompts = [[rank * 50 + i for i in range(32)] for rank in range(3)]
    config = tiny.config(num_blocks=10, block_size=4, max_model_len=40, tensor_parallel_size=ranks)
    config = config.with_options(swap_bytes=30 * config.block_bytes)
    arenas = SwapArenas(config, num_gpus_per_rank=0.0)
    async with _serving(config, arenas) as supervisor, client_of(supervisor) as client:
        answers = [await generate(client, prompt, _GREEDY) for prompt in prompts]
        again = await generate(client, prompts[0], _GREEDY)
        assert again == answers[0]
        # all full blocks but the one that holds the token to compute
        assert supervisor.stats.num_restored_tokens == 28
        os.kill(await pid_of(supervisor._gang._actors[-1]), signal.SIGKILL)
    async with _serving(config, arenas) as supervisor, client_of(supervisor) as client:
        assert await generate(client, prompts[0], _GREEDY) == answers[0]
        assert supervisor.stats.num_restored_tokens == 28
        # another prompt finds nothing
        assert await generate(client, [*prompts[0][1:], 1], _GREEDY) != answers[0]
        assert supervisor.stats.num_restored_tokens == 28
    await arenas.close()


async def test_a_byte_that_was_changed_meanwhile_costs_a_prefill_and_no_answer(
    tiny: TinyModel,
) -> None:
    prompts = [[rank * 50 + i for i in range(32)] for rank in range(3)]
    config = tiny.config(num_blocks=10, block_size=4, max_model_len=40)
    config = config.with_options(swap_bytes=30 * config.block_bytes)
    arenas = SwapArenas(config, num_gpus_per_rank=0.0)
    async with _serving(config, arenas) as supervisor, client_of(supervisor) as client:
        answers = [await generate(client, prompt, _GREEDY) for prompt in prompts]
        [ref] = await arenas.refs()
        view = ray.get(ref).copy()
        _flip(ray.get(ref), config.block_bytes)
        assert (ray.get(ref) != view).sum() > 0
        assert await generate(client, prompts[0], _GREEDY) == answers[0]
        assert supervisor.stats.num_spoiled > 0
        assert await generate(client, prompts[0], _GREEDY) == answers[0]
    await arenas.close()


def _flip(view: "np.ndarray[tuple[int], np.dtype[np.uint8]]", block_bytes: int) -> None:
    """Change a bit in each block."""
    start = -view.ctypes.data % 4096
    for slot in range(30):
        byte = ctypes.c_uint8.from_address(view.ctypes.data + start + slot * block_bytes + 5)
        byte.value ^= 1
