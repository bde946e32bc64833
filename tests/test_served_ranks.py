"""The real application on two ranks: `serve run`, asked over HTTP, against one rank in here."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml

from app.text.tokenizer import Tokenizer
from engine.types import SamplingParams
from load_tests.bench.startup.process_tree import wait_gone
from load_tests.bench.startup.server_process import ServerProcess
from tests.app.text.tokenizers import byte_level_backend
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.whole.engine_run import run
from tests.load_tests.free_port import free_port

pytestmark = pytest.mark.ray

PROMPTS = [[1, 2, 3], list(range(30, 60)), [7]]
SAMPLING = SamplingParams(max_tokens=16, temperature=0.0, num_logprobs=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny = save_tiny("tied_llama3", folder)
    byte_level_backend().save(str(folder / "tokenizer.json"))
    return tiny


@pytest.fixture(scope="module")
def url(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    config = yaml.safe_load(Path("serve_config.yaml").read_text())
    port = config["http_options"]["port"] = free_port()
    config["applications"][0]["args"] |= {
        "model": str(model.folder),
        "device": "cpu",
        "dtype": "float32",
        "num_blocks": 64,
        "tensor_parallel_size": 2,
    }
    path = folder / "serve_config.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "ray.serve.scripts", "run", "--address", "local", str(path)]
    running = ServerProcess(command, f"http://127.0.0.1:{port}", folder / "log", dict(os.environ))
    try:
        running.seconds_until_healthy(240.0)
        yield f"http://127.0.0.1:{port}/v1"
        processes = running.processes()
        running.interrupt()
        assert wait_gone(processes, 60.0) == []
    finally:
        running.close()


async def test_two_ranks_answer_what_one_computes(url: str, model: TinyModel) -> None:
    single = run(model, PROMPTS, SAMPLING)
    tokenizer = Tokenizer.load(model.folder)
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model="tiny",
                    prompt=prompt,
                    max_tokens=SAMPLING.max_tokens,
                    temperature=0,
                    logprobs=0,
                    extra_body={"ignore_eos": True},
                )
                for prompt in PROMPTS
            )
        )
    for index, answer in enumerate(answers):
        expected, [choice] = single.reported[index, 0], answer.choices
        assert choice.text == tokenizer.decode(expected.tokens)
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-5)
