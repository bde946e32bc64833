"""Every member of every family against transformers: same weights, same tokens, same logits."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from app.models.checkpoint import check_weights
from engine.types import StepResult
from engine.worker.worker import Worker, load_worker
from tests.engine.model.members import MEMBERS
from tests.engine.model.tiny import VOCAB_SIZE, TinyModel, save_tiny
from tests.engine.worker.plans import GREEDY, Driver

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
