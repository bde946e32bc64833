"""Bad bodies through `serve run`, beside streams that come as they do without them."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.app.api.answers import events, summed
from tests.app.api.bad_input.bodies import TOO_LARGE, bad_bodies
from tests.app.api.bad_input.test_bodies import deviations
from tests.app.api.direct import Answer
from tests.app.api.server import COMPLETIONS
from tests.deployed.odd_folder import MAX_MODEL_LEN
from tests.deployed.serve_run import Deployed

pytestmark = [pytest.mark.ray, pytest.mark.slow]
JSON = {"content-type": "application/json"}
NUM_STREAMS, NUM_AT_ONCE = 8, 20


async def streams(odd: httpx.AsyncClient) -> list[Any]:
    bodies = [
        {
            "prompt": [number, number + 1, number + 2],
            "seed": number,
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            **({"n": 2} if number % 2 else {"temperature": 0}),
        }
        for number in range(20, 20 + NUM_STREAMS)
    ]
    answers = await asyncio.gather(*(odd.post(COMPLETIONS, json=body) for body in bodies))
    return [summed(events(answer.text)) for answer in answers]


async def test_streams_beside_bad_bodies_are_as_without(
    odd: httpx.AsyncClient, deployed: Deployed
) -> None:
    quiet = await streams(odd)
    vocab_size = deployed.odd.reference.config.vocab_size
    # a client that still sends what is too large may not see why its connection ends
    bad = [one for one in bad_bodies(vocab_size, MAX_MODEL_LEN) if one.right != TOO_LARGE]
    good = asyncio.ensure_future(streams(odd))
    for start in range(0, len(bad), NUM_AT_ONCE):
        part = bad[start : start + NUM_AT_ONCE]
        answers = await asyncio.gather(
            *(odd.post(one.path, content=one.content, headers=JSON) for one in part)
        )
        for one, response in zip(part, answers, strict=True):
            answer = Answer(
                status=response.status_code, headers=dict(response.headers), body=response.content
            )
            assert not deviations(one, answer), (one.number, one.path, one.content[:200])
        if good.done():
            assert await good == quiet
            good = asyncio.ensure_future(streams(odd))
    assert await good == quiet
