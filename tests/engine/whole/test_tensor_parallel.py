"""Two ranks against one: the same tokens, greedy and drawn, from files and from dummy weights."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.runtime.replica.gang import GangOptions, start_gang
from engine.runtime.replica.supervisor import Supervisor
from engine.types import SamplingParams
from engine.worker.worker import load_worker
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.runtime.serving import client_of, generate
from tests.engine.whole.engine_run import run, tokens_of
from tests.engine.whole.ranks import deterministic_bits, mixed_batch, run_ranks

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
DRAWN = SamplingParams(max_tokens=12, temperature=1.2, seed=5)


@pytest.mark.ray
async def test_a_gang_of_two_ranks_generates_what_one_rank_does(
    ray_cluster: None, tiny: TinyModel
) -> None:
    prompts, samplings = [[1, 2, 3], list(range(30)), [7]], [GREEDY, DRAWN, DRAWN]
    single = tokens_of(run(tiny, prompts, samplings))
    config = tiny.config(tensor_parallel_size=2)
    gang = await start_gang(config, GangOptions(num_cpus_per_rank=0.1))
    supervisor = Supervisor(gang, config, replica="a", step_deadline_s=30.0)
    try:
        async with client_of(supervisor) as client:
            pairs = zip(prompts, samplings, strict=True)
            requests = [generate(client, prompt, sampling) for prompt, sampling in pairs]
            both = await asyncio.gather(*requests)
    finally:
        supervisor.close()
    assert both == list(single.values())


# an odd vocabulary, biases on both sides of attention, tied and untied heads
@pytest.mark.slow
@pytest.mark.parametrize("name", ["all_bias", "qwen2", "opt", "opt_norms_last", "gpt2"])
def test_two_ranks_generate_what_one_does(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    alone = mixed_batch(load_worker(tiny.config(block_size=4)))
    both = run_ranks(tiny.config(block_size=4, tensor_parallel_size=2), mixed_batch, tmp_path)
    assert both == [alone, alone]
    assert alone[0] == tiny.greedy(list(range(3)), 32)


@pytest.mark.slow
def test_dummy_weights_are_the_same_on_two_ranks(tiny: TinyModel, tmp_path: Path) -> None:
    config = tiny.config(load_format="dummy")
    alone = mixed_batch(load_worker(config))
    assert run_ranks(replace(config, tensor_parallel_size=2), mixed_batch, tmp_path) == [
        alone,
        alone,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks"), [("tied_llama3", 2), ("mha", 4), ("opt", 4)])
def test_bits_do_not_depend_on_what_the_ranks_do_beside(
    name: str, num_ranks: int, tmp_path: Path
) -> None:
    config = save_tiny(name, tmp_path).config(
        block_size=4,
        num_blocks=20,
        max_model_len=80,
        swap_bytes=1 << 20,
        tensor_parallel_size=num_ranks,
    )
    for bits in run_ranks(config, deterministic_bits, tmp_path):
        alone = bits[:4]
        assert len(bits) == 4 * 3
        assert [bits[4:8], bits[8:]] == [alone, alone]


def test_several_ranks_need_a_rendezvous(tiny: TinyModel) -> None:
    with pytest.raises(ConfigError, match="needs a rendezvous"):
        load_worker(tiny.config(tensor_parallel_size=2))


@pytest.mark.parametrize("rank", [-1, 2])
def test_rank_must_be_one_of_them(tiny: TinyModel, rank: int) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} is not"):
        load_worker(tiny.config(tensor_parallel_size=2), rank=rank)
