"""Sampled rows: each as if it were the only one, reported in columns."""

import math
from dataclasses import replace

import pytest
import torch

from engine.types import SamplingParams
from engine.worker.worker import Worker, load_worker
from tests.engine.model.tiny import VOCAB_SIZE, TinyModel
from tests.engine.worker.plans import GREEDY, Driver

_DRAWING = SamplingParams(max_tokens=1, temperature=1.3, seed=7)
_KINDS = (
    GREEDY,
    _DRAWING,
    replace(_DRAWING, seed=8),
    replace(_DRAWING, top_k=3),
    replace(_DRAWING, top_p=0.6, temperature=0.4),
    replace(_DRAWING, min_p=0.2),
    replace(_DRAWING, top_k=20, top_p=0.8, min_p=0.05, seed=(1 << 64) - 1),
)
_PROMPT = [3, 1, 4, 1, 5]


def _generate(driver: Driver, sampling: SamplingParams, num_tokens: int = 12) -> list[int]:
    row = driver.admit(_PROMPT, sampling)
    driver.prefill(row, 64)
    return driver.generate(row, num_tokens)


def _fresh(tiny: TinyModel) -> Worker:
    return load_worker(tiny.config(block_size=4))


def test_rows_with_different_parameters_equal_each_alone(tiny: TinyModel) -> None:
    together = Driver(_fresh(tiny))
    rows = [together.admit(_PROMPT, sampling) for sampling in _KINDS]
    together.run(rows, num_tokens=12, chunk=2)
    single = [_generate(Driver(_fresh(tiny)), sampling) for sampling in _KINDS]
    assert [row.output for row in rows] == single
    # so the kinds do differ
    assert len({tuple(output) for output in single}) == len(_KINDS)


@pytest.mark.parametrize("sampling", _KINDS)
def test_recomputed_row_draws_the_same_tokens(tiny: TinyModel, sampling: SamplingParams) -> None:
    driver = Driver(_fresh(tiny))
    expected = _generate(driver, sampling)
    again = driver.admit(_PROMPT + expected[:5], sampling)
    driver.prefill(again, 4)
    assert driver.generate(again, 7) == expected[5:]


def test_top_k_of_one_is_greedy(tiny: TinyModel) -> None:
    driver = Driver(_fresh(tiny))
    assert _generate(driver, replace(_DRAWING, top_k=1)) == _generate(driver, GREEDY)


def test_logprobs_are_reported_to_the_rows_that_asked(tiny: TinyModel) -> None:
    driver = Driver(_fresh(tiny))
    asked = (None, 0, 3, 5)
    rows = [driver.admit(_PROMPT, replace(_DRAWING, num_logprobs=count)) for count in asked]
    result = driver.step([], [(row, len(_PROMPT)) for row in rows])
    expected = tiny.logprobs(_PROMPT)[-1]
    assert list(result.top_counts) == [0, 0, 3, 5]
    assert math.isnan(result.logprobs[0])
    chosen = expected[list(result.tokens)]
    torch.testing.assert_close(torch.tensor(result.logprobs)[1:], chosen[1:], atol=1e-4, rtol=0)
    top = expected.topk(5)
    assert list(result.top_tokens) == top.indices[:3].tolist() + top.indices.tolist()
    reported = torch.tensor(result.top_logprobs)
    torch.testing.assert_close(reported, torch.cat((top.values[:3], top.values)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_logprobs", [None, 0])
def test_columns_of_alternatives_are_empty_when_nobody_asked(
    tiny: TinyModel, num_logprobs: int | None
) -> None:
    driver = Driver(_fresh(tiny))
    row = driver.admit(_PROMPT, replace(GREEDY, num_logprobs=num_logprobs))
    (result,) = driver.prefill(row, 64)
    assert (len(result.top_counts), len(result.top_tokens), len(result.top_logprobs)) == (0, 0, 0)
    assert math.isnan(result.logprobs[0]) == (num_logprobs is None)


def test_more_alternatives_than_tokens_are_clipped_to_the_vocabulary(tiny: TinyModel) -> None:
    driver = Driver(_fresh(tiny))
    row = driver.admit(_PROMPT, replace(GREEDY, num_logprobs=VOCAB_SIZE + 5))
    (result,) = driver.prefill(row, 64)
    assert list(result.top_counts) == [VOCAB_SIZE]
    assert len(result.top_tokens) == VOCAB_SIZE
