"""Gangs of several ranks in processes of their own, over gloo or on GPUs, against one rank here."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.errors import EngineError
from engine.runtime.replica.gang import GangOptions, start_gang
from engine.runtime.replica.start import start_replica
from engine.types import SamplingParams
from tests.engine.executor.ranks import prefill
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.runtime.serving import client_of, generate
from tests.engine.whole.engine_run import Run, run, tokens_of
from tests.engine.whole.rank_processes import RankProcesses
from tests.engine.whole.ranks import deterministic_bits, run_ranks
from tests.fakes.worker_loader import load_replaying_worker

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, num_logprobs=3, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=1.2, seed=5)
SEVERAL = replace(DRAWN, n=3, top_p=0.8, seed=6)
SEARCHED = replace(GREEDY, n=2, beam_width=3, num_logprobs=1)
PROMPTS = [[1, 2, 3], list(range(30)), [7], list(range(60, 77)), [9, 8]]
SAMPLINGS = [GREEDY, GREEDY, DRAWN, SEVERAL, SEARCHED]


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    with RankProcesses(4) as processes:
        yield processes


def logprobs_of(engine: Run) -> list[float]:
    """All log-probabilities in order, of the chosen tokens and of the alternatives."""
    reports = [engine.reported[key] for key in sorted(engine.reported)]
    chosen = [value for report in reports for value in report.logprobs]
    tops = [value for report in reports for step in report.tops for _, value in step]
    return chosen + tops


# of tied_llama3, which has two key-value heads, four ranks hold copies
@pytest.mark.parametrize(
    "name", ["tied_llama3", "opt", "gpt2", pytest.param("qwen3_moe", marks=pytest.mark.slow)]
)
def test_two_and_four_ranks_generate_what_one_does(
    name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    tiny = save_tiny(name, tmp_path)
    single = run(tiny, PROMPTS, SAMPLINGS, max_num_seqs=16)
    for size in (2, 4):
        config = tiny.config(max_num_seqs=16, tensor_parallel_size=size)
        with processes.gang(config, tmp_path) as executor:
            several = run(tiny, PROMPTS, SAMPLINGS, max_num_seqs=16, connect=lambda _: executor)
        assert tokens_of(several) == tokens_of(single)
        assert logprobs_of(several) == pytest.approx(logprobs_of(single), abs=1e-5)


def test_ranks_capture_and_replay_their_steps_together(
    processes: RankProcesses, tiny: TinyModel, tmp_path: Path
) -> None:
    prompts, samplings = PROMPTS[:3], [replace(each, num_logprobs=None) for each in SAMPLINGS[:3]]
    single = run(tiny, prompts, samplings)
    config = tiny.config(tensor_parallel_size=2)
    with processes.gang(config, tmp_path, load_replaying_worker) as executor:
        several = run(tiny, prompts, samplings, connect=lambda _: executor)
    assert tokens_of(several) == tokens_of(single)
    num_steps = len([plan for plan in single.plans if plan.num_tokens])
    assert processes.num_replays == [num_steps] * 2


def test_a_rank_whose_peer_dies_in_a_step_does_not_wait_for_it(
    tiny: TinyModel, tmp_path: Path
) -> None:
    config = tiny.config(tensor_parallel_size=2)
    with RankProcesses(2) as processes:
        gang = processes.gang(config, tmp_path)
        executor = gang.__enter__()
        processes.freeze(1)
        executor.submit(prefill(0))
        processes.kill(1)
        with pytest.raises(EngineError):
            executor.collect()
        executor.close()
        assert processes.has_ended(0)


@pytest.mark.ray
async def test_a_gang_of_two_ranks_generates_what_one_rank_does(
    ray_cluster: None, tiny: TinyModel
) -> None:
    prompts, samplings = PROMPTS[:3], SAMPLINGS[:3]
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


@pytest.fixture
def gpus(size: int) -> None:
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")


@pytest.mark.gpu
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("has_peer_memory", [True, False])
@pytest.mark.parametrize("name", ["tied_llama3", "opt"])
@pytest.mark.parametrize("size", [2, 4])
def test_gpus_generate_what_one_cpu_does(
    size: int, name: str, has_peer_memory: bool, processes: RankProcesses, tmp_path: Path
) -> None:
    tiny = save_tiny(name, tmp_path)
    single = run(tiny, PROMPTS, SAMPLINGS, max_num_seqs=16)
    config = tiny.config(
        max_num_seqs=16,
        tensor_parallel_size=size,
        device="cuda",
        peer_memory=has_peer_memory,
    )
    with processes.gang(config, tmp_path) as executor:
        several = run(tiny, PROMPTS, SAMPLINGS, max_num_seqs=16, connect=lambda _: executor)
    assert tokens_of(several) == tokens_of(single)


@pytest.mark.gpu
@pytest.mark.ray
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("size", [2])
async def test_ranks_that_ray_gave_a_gpu_each_write_to_each_other_s(
    size: int, ray_cluster: None, tiny: TinyModel
) -> None:
    config = tiny.config(tensor_parallel_size=size, device="cuda")
    gang = await start_gang(config, GangOptions(num_cpus_per_rank=0.1, num_gpus_per_rank=1.0))
    try:
        asked = [
            rank.actor.__ray_call__.remote(
                lambda actor: (
                    str(actor._worker._runtime.device),
                    actor._worker._parallel.row_sums is not None,
                )
            )
            for rank in gang._ranks
        ]
        found = await asyncio.gather(*asked)
    finally:
        gang.channel.close()
        await gang.close()
    assert found == [(f"cuda:{rank}", True) for rank in range(size)]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("has_peer_memory", [True, False])
@pytest.mark.parametrize("size", [2, 4])
def test_bits_do_not_depend_on_what_the_gpus_do_beside(
    size: int, has_peer_memory: bool, tmp_path: Path
) -> None:
    config = save_tiny("mha", tmp_path).config(
        block_size=4,
        num_blocks=20,
        max_model_len=80,
        swap_bytes=1 << 20,
        tensor_parallel_size=size,
        device="cuda",
        dtype="bfloat16",
        peer_memory=has_peer_memory,
    )
    for bits in run_ranks(config, deterministic_bits, tmp_path):
        assert [bits[4:8], bits[8:]] == [bits[:4], bits[:4]]
