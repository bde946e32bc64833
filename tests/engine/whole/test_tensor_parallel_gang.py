"""A served gang of two ranks, as Ray processes over gloo, against one rank in this process."""

import asyncio

import pytest

from engine.runtime.replica.gang import GangOptions
from engine.runtime.replica.start import start_replica
from engine.types import SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.runtime.serving import client_of, generate
from tests.engine.whole.engine_run import run, tokens_of

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
DRAWN = SamplingParams(max_tokens=12, temperature=1.2, seed=5)


@pytest.mark.ray
async def test_a_gang_of_two_ranks_generates_what_one_rank_does(
    ray_cluster: None, tiny: TinyModel
) -> None:
    prompts, samplings = [[1, 2, 3], list(range(30)), [7]], [GREEDY, DRAWN, DRAWN]
    of_one_rank = tokens_of(run(tiny, prompts, samplings))
    config = tiny.config(tensor_parallel_size=2)
    supervisor = await start_replica(config, GangOptions(num_cpus_per_rank=0.1), replica="a")
    try:
        async with client_of(supervisor) as client:
            pairs = zip(prompts, samplings, strict=True)
            requests = [generate(client, prompt, sampling) for prompt, sampling in pairs]
            of_two_ranks = await asyncio.gather(*requests)
    finally:
        await supervisor.close()
    assert of_two_ranks == list(of_one_rank.values())
