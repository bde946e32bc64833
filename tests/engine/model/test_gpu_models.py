"""Every family on a GPU: in float32 the same tokens as transformers, greedily and in searches."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

from engine.types import SamplingParams
from engine.worker.worker import load_worker
from tests.engine.model.members import MEMBERS
from tests.engine.model.tiny import NAMES, VOCAB_SIZE, save_tiny
from tests.engine.whole.engine_run import run, tokens_of
from tests.engine.worker.plans import GREEDY, Driver

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _one_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.mark.parametrize("name", [*NAMES, *MEMBERS])
def test_greedy_ids_equal_transformers(name: str, tmp_path: Path) -> None:
    if name == "gpt_oss" and Version(transformers.__version__) < Version("5.18"):
        pytest.skip("transformers took 7 for any `swiglu_limit`")
    tiny = save_tiny(name, tmp_path)
    # longrope takes the short factors, as transformers does for sequences as short as these
    config = tiny.config(device="cuda", block_size=16, max_model_len=64)
    driver = Driver(load_worker(config))
    rows = [driver.admit(range(10 * length, 11 * length)) for length in (1, 9, 25)]
    driver.run(rows, num_tokens=38)
    for row in rows:
        assert row.output == tiny.most_likely(row.tokens[: row.prompt_len], row.output)


@pytest.mark.parametrize("name", ["mha", "opt", "opt_norms_last", "gpt2", "qwen3", "gemma2"])
def test_searches_equal_the_cpu(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    prompts = [list(range(start, start + 20)) for start in (3, 40, 100)]
    sampling = SamplingParams(max_tokens=20, beam_width=4, n=4)
    tokens = [
        tokens_of(run(tiny, prompts, sampling, device=device, max_num_seqs=16))
        for device in ("cpu", "cuda")
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["mha", "opt", "gpt2", "qwen3", "olmo2", "gemma3", "granite"])
def test_half_precision_is_near_transformers(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    driver = Driver(load_worker(tiny.config(device="cuda", dtype="bfloat16")))
    row = driver.admit(range(20), replace(GREEDY, num_logprobs=VOCAB_SIZE))
    result = driver.prefill(row, 64)[-1]
    computed = torch.empty(VOCAB_SIZE)
    computed[list(result.top_tokens)] = torch.tensor(result.top_logprobs)
    torch.testing.assert_close(computed, tiny.logprobs(list(range(20)))[-1], atol=0.25, rtol=0)
