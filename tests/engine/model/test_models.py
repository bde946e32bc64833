"""The models against transformers: same weights, same tokens, same log-probabilities."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from app.models import embedded
from app.models.cache_folder import default_cache
from engine.errors import ConfigError
from engine.types import StepResult
from engine.worker.worker import Worker, load_worker
from tests.engine.model.tiny import NAMES, VOCAB_SIZE, TinyModel, save_tiny
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, run
from tests.engine.worker.plans import GREEDY, Driver

# every logit can be read through the log-probabilities of all tokens
_ALL_LOGPROBS = replace(GREEDY, num_logprobs=VOCAB_SIZE)
_NUM_TOKENS = 64


@pytest.fixture(scope="module", params=NAMES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=["opt", "opt_norms_last", "gpt2"])
def tabled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Its positions are rows of a table."""
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gqa(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny("tied_llama3", tmp_path_factory.mktemp("gqa"))


def _load(tiny: TinyModel, **settings: object) -> Worker:
    worker = load_worker(tiny.config(**settings))
    # nothing may read a slot that no token was written to
    worker.pool.kv.fill_(math.nan)
    return worker


def _prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def _logprobs(result: StepResult, position: int = 0) -> Tensor:
    """All log-probabilities [vocab] of one sampled row."""
    span = slice(position * VOCAB_SIZE, (position + 1) * VOCAB_SIZE)
    dense = torch.empty(VOCAB_SIZE)
    dense[list(result.top_tokens[span])] = torch.tensor(result.top_logprobs[span])
    return dense


def test_logprobs_of_every_step_equal_transformers(tiny: TinyModel) -> None:
    driver = Driver(_load(tiny))
    row = driver.admit(_prompt(37), _ALL_LOGPROBS)
    results = driver.prefill(row, 64) + [driver.step([row]) for _ in range(_NUM_TOKENS - 1)]
    expected = tiny.logprobs(row.tokens[:-1])[36:]
    computed = torch.stack([_logprobs(result) for result in results])
    torch.testing.assert_close(computed, expected, atol=2e-4, rtol=0)
    assert row.output == tiny.greedy(_prompt(37), _NUM_TOKENS)


@pytest.mark.parametrize(
    ("chunk", "block_size"),
    [
        # each of both in every run, the other pairs where time is no matter
        pytest.param(chunk, block_size, marks=[] if i == j else [pytest.mark.slow])
        for i, chunk in enumerate((1, 7, 64))
        for j, block_size in enumerate((4, 1, 16))
    ],
)
def test_greedy_ids_do_not_depend_on_chunks_and_blocks(
    gqa: TinyModel, chunk: int, block_size: int
) -> None:
    driver = Driver(_load(gqa, block_size=block_size))
    row = driver.admit(_prompt(70))
    driver.prefill(row, chunk)
    assert driver.generate(row, _NUM_TOKENS) == gqa.greedy(_prompt(70), _NUM_TOKENS)


@pytest.mark.in_turn
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_learned_positions_do_not_depend_on_chunks(tabled: TinyModel, chunk: int) -> None:
    driver = Driver(_load(tabled, block_size=4))
    row = driver.admit(_prompt(70))
    driver.prefill(row, chunk)
    assert driver.generate(row, _NUM_TOKENS) == tabled.greedy(_prompt(70), _NUM_TOKENS)


@pytest.mark.parametrize(
    ("budget", "mode"),
    [
        (7, "swap"),
        (64, "recompute"),
        pytest.param(4, "swap", marks=pytest.mark.slow),
        pytest.param(4, "recompute", marks=pytest.mark.slow),
        pytest.param(7, "recompute", marks=pytest.mark.slow),
        pytest.param(64, "swap", marks=pytest.mark.slow),
    ],
)
def test_preempted_requests_generate_what_transformers_does(
    tabled: TinyModel, budget: int, mode: str
) -> None:
    prompts = [_prompt(length, length) for length in (3, 16, 29)]
    # the three grow to 240 tokens in all, the pool holds 136
    engine = run(
        tabled,
        prompts,
        replace(GREEDY, max_tokens=_NUM_TOKENS),
        block_size=4,
        num_blocks=34,
        max_model_len=136,
        max_num_batched_tokens=budget,
        preemption=SWAP if mode == "swap" else RECOMPUTE,
        swap_bytes=SWAP_BYTES,
    )
    num_recomputed, num_swapped = engine.num_preempted
    assert (num_swapped if mode == "swap" else num_recomputed) > 0
    for index, prompt in enumerate(prompts):
        assert engine.reported[index, 0].tokens == tabled.greedy(prompt, _NUM_TOKENS)


@pytest.mark.parametrize("name", ["opt", "gpt2"])
def test_more_positions_than_the_model_has_learned_are_refused(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
    load_worker(model.config(max_model_len=256))
    with pytest.raises(ConfigError, match=r"max_model_len 257 is above the 256 positions.* to 256"):
        load_worker(model.config(max_model_len=257))


def test_rows_of_a_mixed_batch_equal_each_by_itself(tiny: TinyModel) -> None:
    driver = Driver(_load(tiny, block_size=4))
    rows = [driver.admit(_prompt(length, length)) for length in (1, 5, 33, 60)]
    driver.run(rows, num_tokens=24)
    for row in rows:
        assert row.output == tiny.greedy(row.tokens[: row.prompt_len], 24)


def test_recomputed_row_goes_on_as_before(gqa: TinyModel) -> None:
    driver = Driver(_load(gqa, block_size=4))
    row = driver.admit(_prompt(21))
    driver.prefill(row, 64)
    driver.generate(row, 30)
    driver.release(row)
    # the row and its blocks go to another sequence first
    other = driver.admit(_prompt(50, 1))
    driver.prefill(other, 64)
    again = driver.admit(row.tokens)
    driver.prefill(again, 16)
    driver.generate(again, _NUM_TOKENS - 30)
    assert row.output + again.output == gqa.greedy(_prompt(21), _NUM_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("compiled_kernels", [False, True])
def test_embedded_model_equals_transformers(compiled_kernels: bool) -> None:
    folder = embedded.ensure(default_cache())
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tiny = TinyModel(folder, reference)
    driver = Driver(_load(tiny, compiled_kernels=compiled_kernels, num_blocks=64))
    prompt = random.Random(0).choices(range(1000, 2000), k=50)
    row = driver.admit(prompt)
    driver.prefill(row, 16)
    assert driver.generate(row, _NUM_TOKENS) == tiny.greedy(prompt, _NUM_TOKENS)
