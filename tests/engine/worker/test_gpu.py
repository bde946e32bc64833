"""The worker on NVIDIA GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.worker.worker import load_worker
from tests.engine.model.tiny import TinyModel
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
    both = run_ranks(replace(config, tensor_parallel_size=2), mixed_batch, tmp_path)
    assert both == [single, single]
