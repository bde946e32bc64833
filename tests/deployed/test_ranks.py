"""The second application runs on two ranks: asked over HTTP, against one rank in here."""

import asyncio

import httpx
import pytest

from engine.types import SamplingParams
from tests.app.api.server import COMPLETIONS
from tests.deployed.serve_run import Deployed
from tests.engine.whole.engine_run import run

pytestmark = pytest.mark.ray

PROMPTS = [[1, 2, 3], list(range(30, 60)), [7]]
SAMPLING = SamplingParams(max_tokens=16, temperature=0.0, num_logprobs=0, ignore_eos=True)
BODY = {
    "max_tokens": SAMPLING.max_tokens,
    "temperature": 0,
    "logprobs": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


async def test_two_ranks_answer_what_one_computes(
    odd: httpx.AsyncClient, deployed: Deployed
) -> None:
    single = run(deployed.odd, PROMPTS, SAMPLING)
    answers = await asyncio.gather(
        *(odd.post(COMPLETIONS, json={**BODY, "prompt": prompt}) for prompt in PROMPTS)
    )
    for index, answer in enumerate(answers):
        expected, [choice] = single.reported[index, 0], answer.json()["choices"]
        assert choice["token_ids"] == expected.tokens
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)
