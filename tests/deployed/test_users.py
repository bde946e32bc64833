"""The real application: `serve run` with the embedded model, driven as users drive it."""

import asyncio
import random
from collections.abc import AsyncIterator

import openai
import pytest

from tests.deployed.serve_run import BLOCK_SIZE, MODEL, NUM_BLOCKS, Deployed

pytestmark = pytest.mark.ray

PROMPTS = [f"Here are {count} facts about the number {count}:" for count in range(2, 18)]


@pytest.fixture
async def client(deployed: Deployed) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{deployed.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


async def complete(client: openai.AsyncOpenAI, prompt: str) -> str:
    answer = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=24, temperature=0
    )
    return answer.choices[0].text


async def test_a_question_is_answered_plain_and_streamed(client: openai.AsyncOpenAI) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    ask = {"model": MODEL, "messages": [question], "temperature": 0, "max_tokens": 32}
    plain = await client.chat.completions.create(**ask)  # type: ignore[call-overload]
    text = plain.choices[0].message.content
    assert "Paris" in text
    stream = await client.chat.completions.create(**ask, stream=True)  # type: ignore[call-overload]
    deltas = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(deltas) == text


@pytest.mark.slow
async def test_concurrent_requests_answer_as_they_do_one_by_one(client: openai.AsyncOpenAI) -> None:
    together = await asyncio.gather(*(complete(client, prompt) for prompt in PROMPTS))
    single = [await complete(client, prompt) for prompt in PROMPTS]
    assert together == single


@pytest.mark.slow
async def test_disconnects_leave_no_block_behind(client: openai.AsyncOpenAI) -> None:
    rng = random.Random(0)

    async def leave_early(prompt: str, num_chunks: int) -> None:
        stream = await client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=64, temperature=0, stream=True
        )
        async for _ in stream:
            num_chunks -= 1
            if num_chunks <= 0:
                break
        await stream.close()

    for _ in range(10):
        visits = [leave_early(rng.choice(PROMPTS), rng.randint(1, 40)) for _ in range(20)]
        await asyncio.gather(*visits)
    whole_pool = [17] * (NUM_BLOCKS * BLOCK_SIZE - 4)
    answer = await client.completions.create(
        model=MODEL, prompt=whole_pool, max_tokens=4, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
