"""Bad requests beside good streams, over a real engine: the streams notice none."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette

from tests.app.api.bad_input.bodies import BadBody, bad_bodies
from tests.app.api.bad_input.test_bodies import deviations
from tests.app.api.direct import send
from tests.app.api.fields.rows import VOCAB
from tests.app.api.server import COMPLETIONS, MAX_MODEL_LEN, make_app
from tests.app.with_engine.reference import PROMPT
from tests.fakes.inline_engine import InlineEngineClient

NUM_AT_ONCE = 25
# sampled and greedy ones, with log-probabilities, several choices and beams
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1, "n": 2},
    {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.5},
    {"use_beam_search": True, "n": 2},
    {"temperature": 0, "stop": ["zebra"]},
    {"temperature": 1, "logit_bias": {"7": 2}},
]


async def streams(app: Starlette) -> list[list[Any]]:
    """Send the good requests at once; returns the chunks of each, without what is its own."""
    bodies = [
        {"prompt": [*PROMPT, number], "seed": number, "max_tokens": 64, "ignore_eos": True,
         "stream": True, "return_token_ids": True, **kind}
        for number, kind in enumerate(KINDS, start=5)
    ]  # fmt: skip
    answers = await asyncio.gather(
        *(send(app, COMPLETIONS, json.dumps(body).encode()) for body in bodies)
    )
    assert {answer.status for answer in answers} == {200}
    return [_choices(answer.body) for answer in answers]


def _choices(body: bytes) -> list[Any]:
    """The choices of a stream put together: how tokens share chunks depends on time."""
    found: dict[int, dict[str, Any]] = {}
    for line in body.split(b"\n\n")[:-2]:
        for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
            whole = found.setdefault(choice["index"], {"text": "", "ids": [], "scores": []})
            whole["text"] += choice["text"]
            whole["ids"] += choice["token_ids"]
            scores = choice["logprobs"] or {"token_logprobs": []}
            whole["scores"] += scores["token_logprobs"]
            whole["end"] = choice["finish_reason"]
    assert body.endswith(b"data: [DONE]\n\n")
    return [found[index] for index in sorted(found)]


async def batches(bad: Sequence[BadBody], app: Starlette) -> AsyncIterator[list[str]]:
    """Send bad bodies, a few at once; yields how their answers deviate."""
    for start in range(0, len(bad), NUM_AT_ONCE):
        part = bad[start : start + NUM_AT_ONCE]
        answers = await asyncio.gather(*(send(app, one.path, one.content) for one in part))
        yield [
            w for one, answer in zip(part, answers, strict=True) for w in deviations(one, answer)
        ]


# each body by itself is in tests/app/api/bad_input: here it is enough that streams have such beside
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
async def test_streams_beside_bad_requests_are_as_without(
    client: InlineEngineClient, every: int
) -> None:
    app = make_app(client)
    quiet = await streams(app)
    good = asyncio.ensure_future(streams(app))
    num_batches = 0
    async for found in batches(bad_bodies(VOCAB, MAX_MODEL_LEN)[::every], app):
        assert not found
        num_batches += 1
        if good.done():
            assert await good == quiet
            good = asyncio.ensure_future(streams(app))
    assert await good == quiet
    assert num_batches > 4
