"""The real application: `serve run` with the embedded model, driven as users drive it."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
import yaml

from load_tests.bench.startup.process_tree import wait_gone
from load_tests.bench.startup.server_process import ServerProcess
from tests.load_tests.free_port import free_port

pytestmark = pytest.mark.ray

MODEL = "SmolLM2-135M-Instruct"
# a pool of exactly one context: a request that long runs only when every block is free again
NUM_BLOCKS, BLOCK_SIZE = 64, 16
PROMPTS = [f"Here are {count} facts about the number {count}:" for count in range(2, 18)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    config = yaml.safe_load(Path("serve_config.yaml").read_text())
    port = config["http_options"]["port"] = free_port()
    config["applications"][0]["args"] |= {"dtype": "float32", "num_blocks": NUM_BLOCKS}
    path = folder / "serve_config.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "ray.serve.scripts", "run", "--address", "local", str(path)]
    running = ServerProcess(command, f"http://127.0.0.1:{port}", folder / "log", dict(os.environ))
    try:
        running.seconds_until_healthy(240.0)
        yield running
        processes = running.processes()
        running.interrupt()
        assert wait_gone(processes, 60.0) == []
    finally:
        running.close()


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{server.port}/v1"
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
