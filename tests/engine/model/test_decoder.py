"""Every member of every family against transformers: same weights, same tokens, same logits."""

import math
import random
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from app.models.checkpoint import check_weights
from engine.architectures.registry import ARCHITECTURES
from engine.model.attention import _read_gains
from engine.model.dummy import DummySource
from engine.model.loader import load_model
from engine.model.model import run_model
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from engine.types import StepResult
from engine.worker.worker import Worker, load_worker
from kernels.reference import ReferenceBackend
from tests.engine.model.members import MEMBERS
from tests.engine.model.thread_ranks import thread_ranks
from tests.engine.model.tiny import NAMES, VOCAB_SIZE, TinyModel, save_tiny
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, run
from tests.engine.worker.plans import GREEDY, Driver
from tests.kernels.batches import make_layout

# every logit can be read through the log-probabilities of all tokens
_ALL_LOGPROBS = replace(GREEDY, num_logprobs=VOCAB_SIZE)
_NUM_TOKENS = 64


def _load(tiny: TinyModel, **settings: object) -> Worker:
    worker = load_worker(tiny.config(block_size=4, **settings))
    # nothing may read a slot that no token was written to
    worker.pool.kv.fill_(math.nan)
    return worker


def _logprobs(results: list[StepResult]) -> Tensor:
    """All log-probabilities [steps, vocab] of steps of one row."""
    dense = torch.empty(len(results), VOCAB_SIZE)
    for step, result in enumerate(results):
        dense[step, list(result.top_tokens)] = torch.tensor(result.top_logprobs)
    return dense


@pytest.mark.parametrize("name", MEMBERS)
def test_every_logit_equals_transformers(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    check_weights(tiny.folder, tiny.config().model)
    driver = Driver(_load(tiny))
    prompt = random.Random(0).choices(range(VOCAB_SIZE), k=37)
    row = driver.admit(prompt, _ALL_LOGPROBS)
    results = [driver.prefill(row, 13)[-1]]
    results += [driver.step([row]) for _ in range(_NUM_TOKENS - 1)]
    expected = tiny.logprobs(row.tokens[:-1])[len(prompt) - 1 :]
    torch.testing.assert_close(_logprobs(results), expected, atol=1e-4, rtol=0)
    # what is most likely after each token was chosen, so that transformers goes on in the same way
    assert row.output == expected.argmax(dim=1).tolist()


# what differs most from LLaMA, in layers or in how weights lie; the others take too long for every
# run of the tests
_QUICK = ("qwen3", "olmo2", "gemma3", "qwen3_moe")
_QUICK_RANKS = (
    "tied_llama3", "opt", "gpt2", "phi3", "glm4", "gemma3_images", "starcoder2", "qwen2_moe",
)  # fmt: skip


def _others_slow(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", _others_slow(MEMBERS, _QUICK))
def test_preempted_requests_with_shared_prefixes_choose_as_transformers(
    name: str, mode: str, tmp_path: Path
) -> None:
    tiny = save_tiny(name, tmp_path)
    shared = random.Random(1).choices(range(VOCAB_SIZE), k=16)
    windows = [layer.window for layer in tiny.config().model.spec.layers]
    # three grow to 150 tokens in all, and the pool holds 88; with windows more find room in less
    num_prompts, num_blocks = (8, 16) if any(windows) else (3, 22)
    prompts = [
        shared + list(range(10 * index, 11 * index + 3)) for index in range(1, num_prompts + 1)
    ]
    engine = run(
        tiny,
        prompts,
        replace(GREEDY, max_tokens=30),
        block_size=4,
        num_blocks=num_blocks,
        # longrope takes the short factors, as transformers does for sequences as short as these
        max_model_len=64,
        max_num_batched_tokens=9,
        preemption=SWAP if mode == "swap" else RECOMPUTE,
        swap_bytes=SWAP_BYTES,
    )
    assert engine.stats is not None
    assert engine.stats.num_cached_tokens > 0
    # where every layer has a window, a sequence that decodes needs no more blocks
    assert all(windows) or engine.num_preempted[mode == "swap"] > 0
    for index, prompt in enumerate(prompts):
        output = engine.reported[index, 0].tokens
        assert output == tiny.most_likely(prompt, output)


@pytest.mark.parametrize("name", _others_slow((*NAMES, *MEMBERS), _QUICK_RANKS))
def test_two_ranks_compute_what_one_does(name: str, tmp_path: Path) -> None:
    check_ranks(name, 2, tmp_path)


@pytest.mark.parametrize("name", ["qwen3", "olmo2"])
def test_ranks_that_share_a_key_value_head_compute_what_one_does(name: str, tmp_path: Path) -> None:
    check_ranks(name, 4, tmp_path)


def check_ranks(name: str, num_ranks: int, folder: Path, **changes: int) -> None:
    tiny = save_tiny(name, folder, **changes)
    backend = ReferenceBackend(torch.device("cpu"), torch.float32)

    def logits(parallel: TensorParallel) -> Tensor:
        model = load_model(tiny.config(), backend, parallel)
        shape = tiny.config().model
        groups = shape.kv_groups
        # of the blocks each group has every so many
        layouts = [
            make_layout([[1 + first, first], [2 + first]], [(9, 9), (5, 5)], 8)
            for first in range(0, 3 * groups.count, 3)
        ]
        layout = replace(layouts[0], others=tuple(layouts[1:]))
        num_blocks = 3 * groups.count
        kv = torch.zeros(num_blocks, groups.num_layers, 2, model.num_kv_heads, 8, shape.head_dim)
        with torch.inference_mode():
            return run_model(model, torch.arange(14), kv, layout)

    expected = logits(TensorParallel())
    with ThreadPoolExecutor(num_ranks) as pool:
        for rank in pool.map(logits, thread_ranks(num_ranks)):
            torch.testing.assert_close(rank, expected, atol=1e-4, rtol=1e-4)


def test_gains_of_heads_lie_as_their_weights(tmp_path: Path) -> None:
    model = save_tiny("qwen3", tmp_path).config().model
    stored = ARCHITECTURES[model.architecture].stored(model)
    where = (torch.float32, torch.device("cpu"))
    parameters = Parameters(DummySource(), stored, TensorParallel(), *where)
    order = [*range(1, model.head_dim), 0]
    plain, permuted = (_read_gains(model, parameters, kind, 0) for kind in (None, order))
    assert plain is not None
    assert permuted is not None
    assert torch.equal(permuted, plain[:, order])
