"""Vectors of prompts are those of transformers' hidden states, however the prompt is cut."""

from dataclasses import replace

import pytest
import torch
import transformers
from torch import Tensor

from engine.core.scheduling.preemption import Preemption
from engine.types import FinishReason, Pooling, Progress, SamplingParams, int8, int32
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Run, run
from tests.fakes.worker_loader import loader

_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 45), (60, 16), (90, 1))]


def _sampling(pooling: Pooling) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0.0, pooling=pooling)


def _expected(tiny: TinyModel, prompt: list[int], pooling: Pooling) -> Tensor:
    model = transformers.AutoModel.from_pretrained(tiny.folder, dtype=torch.float32).eval()
    with torch.no_grad():
        states: Tensor = model(torch.tensor([prompt])).last_hidden_state[0]
    return states[-1] if pooling == "last" else states.mean(0)


def _check(run: Run, tiny: TinyModel, samplings: list[SamplingParams]) -> None:
    """Every request that pools has its vector, and has ended without a token."""
    pooling = {
        index: sampling.pooling
        for index, sampling in enumerate(samplings)
        if sampling.pooling != "none"
    }
    assert run.pooled.keys() == pooling.keys()
    for index, kind in pooling.items():
        reported = run.reported[index, 0]
        assert (reported.tokens, reported.reason) == ([], FinishReason.LENGTH)
        expected = _expected(tiny, _PROMPTS[index], kind)
        vector = torch.tensor(run.pooled[index])
        torch.testing.assert_close(vector, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("captures", [False, True])
def test_vectors_equal_transformers(tiny: TinyModel, pooling: Pooling, captures: bool) -> None:
    """Prompts in chunks of 7 tokens, beside each other."""
    load = loader(HostRuntime(captures=captures))
    samplings = [_sampling(pooling)] * 3
    done = run(tiny, _PROMPTS, samplings, load=load, block_size=4, max_num_batched_tokens=7)
    _check(done, tiny, samplings)


@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP])
def test_rows_that_generate_go_on_beside_those_that_pool(
    tiny: TinyModel, preemption: Preemption
) -> None:
    """In a pool that is too small for all."""
    generating = SamplingParams(max_tokens=30, temperature=0.0)
    samplings = [_sampling("mean"), generating, _sampling("last")]
    settings = {"num_blocks": 14, "max_model_len": 56, "swap_bytes": SWAP_BYTES}
    done = run(
        tiny,
        _PROMPTS,
        samplings,
        preemption=preemption,
        block_size=4,
        max_num_batched_tokens=7,
        **settings,
    )
    _check(done, tiny, samplings)
    assert done.reported[1, 0].tokens == tiny.greedy(_PROMPTS[1], 30)


def test_the_last_state_is_the_same_behind_a_cached_prefix(tiny: TinyModel) -> None:
    engine = Run(tiny, block_size=4)
    for index in (0, 1):
        engine.add(index, _PROMPTS[0], _sampling("last"))
        engine.drain()
    assert engine.stats is not None
    assert engine.stats.num_cached_tokens == 44
    torch.testing.assert_close(engine.pooled[0], engine.pooled[1], atol=1e-5, rtol=1e-5)


def test_a_prompt_that_is_aborted_leaves_nothing_in_the_mean_of_the_next(tiny: TinyModel) -> None:
    engine = Run(tiny, block_size=4, max_num_seqs=1, max_num_batched_tokens=7)
    engine.add(0, _PROMPTS[0], _sampling("mean"))
    engine.step()
    engine.abort(0)
    engine.add(1, _PROMPTS[1], _sampling("mean"))
    engine.drain()
    expected = _expected(tiny, _PROMPTS[1], "mean")
    torch.testing.assert_close(torch.tensor(engine.pooled[1]), expected, atol=1e-4, rtol=1e-4)


def test_a_prompt_whose_engine_was_lost_is_pooled_again(tiny: TinyModel) -> None:
    engine = Run(tiny, block_size=4, max_num_batched_tokens=7)
    progress = Progress(age_s=1.0, finish_reasons=int8([0]), counts=int32([0]))
    engine.add(0, _PROMPTS[0], _sampling("mean"), progress)
    engine.drain()
    expected = _expected(tiny, _PROMPTS[0], "mean")
    torch.testing.assert_close(torch.tensor(engine.pooled[0]), expected, atol=1e-4, rtol=1e-4)


def test_a_mean_reads_no_cache_and_a_last_state_does() -> None:
    assert _sampling("last").may_read_cache
    assert not _sampling("mean").may_read_cache
    assert not replace(_sampling("last"), deterministic=True).may_read_cache
