"""The worker on NVIDIA GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.types import SamplingParams
from engine.worker.worker import load_worker
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.whole.engine_run import run, tokens_of
from tests.engine.whole.rank_processes import RankProcesses
from tests.engine.whole.ranks import mixed_batch, run_ranks
from tests.engine.worker.plans import GREEDY, Driver

pytestmark = pytest.mark.gpu

needs_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def _one_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")


def test_greedy_ids_equal_transformers(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config(device="cuda", block_size=4)))
    rows = [driver.admit(range(10 * length, 11 * length)) for length in (1, 9, 25)]
    driver.run(rows, num_tokens=32)
    for row in rows:
        assert row.output == tiny.greedy(row.tokens[: row.prompt_len], 32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logprobs_in_half_precision_are_near_transformers(tiny: TinyModel, dtype: str) -> None:
    driver = Driver(load_worker(tiny.config(device="cuda", dtype=dtype)))
    row = driver.admit(range(20), replace(GREEDY, num_logprobs=0))
    results = [*driver.prefill(row, 16)[1:], *(driver.step([row]) for _ in range(15))]
    computed = torch.tensor([result.logprobs[0] for result in results])
    expected = tiny.logprobs(row.tokens[:-1])[19:]
    chosen = expected.gather(1, torch.tensor(row.output)[:, None])[:, 0]
    torch.testing.assert_close(computed, chosen, atol=0.15, rtol=0)


@needs_gpus
def test_two_gpus_generate_what_one_does(tiny: TinyModel, tmp_path: Path) -> None:
    config = tiny.config(device="cuda", block_size=4)
    single = mixed_batch(load_worker(config))
    for graphs in (False, True):
        several = replace(config, tensor_parallel_size=2, graphs=graphs)
        folder = tmp_path / str(graphs)
        folder.mkdir()
        assert run_ranks(several, mixed_batch, folder) == [single, single]


@needs_gpus
@pytest.mark.parametrize("name", ["tied_llama3", "opt", "gpt2"])
def test_a_gang_on_two_gpus_replays_graphs_and_generates_what_one_gpu_does(
    name: str, tmp_path: Path
) -> None:
    tiny = save_tiny(name, tmp_path)
    prompts = [list(range(start, start + length)) for start, length in ((3, 5), (60, 40), (7, 1))]
    greedy = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    samplings = [greedy, replace(greedy, temperature=1.1, seed=3), replace(greedy, n=2)]
    single = run(tiny, prompts, samplings, device="cuda")
    num_steps = len([plan for plan in single.plans if plan.num_tokens])
    with RankProcesses(2) as processes:
        # the second gang of the same processes has a communicator and graphs of its own
        for _ in range(2):
            config = tiny.config(device="cuda", tensor_parallel_size=2)
            with processes.gang(config, tmp_path) as executor:
                several = run(tiny, prompts, samplings, connect=lambda _, e=executor: e)
            assert tokens_of(several) == tokens_of(single)
            assert processes.num_replays == [num_steps, num_steps]
