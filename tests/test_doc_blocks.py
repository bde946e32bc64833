"""Every block of code in the documentation is run, or at least read by what it is for."""

import argparse
import ast
import json
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import uvicorn
import yaml
from ray.serve.schema import ServeDeploySchema

from app.command.parser import make_parser
from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.settings.config import parse_config
from app.telemetry.telemetry import Telemetry, TelemetryOptions
from load_tests.__main__ import MODULES, load_command
from load_tests.free_port import free_port
from tests import ROOT
from tests.app.telemetry.test_recorded_app import ignore, nobody
from tests.app.text.tokenizers import chatml_tokenizer
from tests.doc_blocks import Block, blocks, commands
from tests.fakes.scripted_engine import FakeEngineClient, Hypothesis, Script

# page -> why its blocks of Python are read only
NOT_RUN = {
    "docs/clients.md": "one line for each client; `make test-clients` runs them",
}
# for a scraper and for another program
OTHER_YAML = ("scrape_configs", "model_id")
TOKENS = list(range(5, 15))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a scripted engine."""
    beams = [Hypothesis(TOKENS, [-0.5] * len(TOKENS)) for _ in range(4)]
    client = FakeEngineClient([Script(TOKENS, hypotheses=beams) for _ in range(20)])
    tokenizer = chatml_tokenizer()
    settings = ApiSettings(
        model_id="SmolLM2-135M-Instruct",
        created_s=0,
        max_model_len=512,
        vocab_size=len(tokenizer.vocabulary),
    )
    telemetry = Telemetry(
        TelemetryOptions(model_name="x"), replica="i", gather=nobody, set_levels=ignore
    )
    app = build_app(client, tokenizer, settings, telemetry)
    port = free_port()
    config = uvicorn.Config(app, port=port, lifespan="off", log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    with httpx.Client(transport=httpx.HTTPTransport(retries=10), trust_env=False) as http:
        assert http.get(f"http://127.0.0.1:{port}/live").status_code == 200
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
    telemetry.close()


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs(block: Block, url: str) -> None:
    if "response_format=Person" in block.text or block.page in NOT_RUN:
        ast.parse(block.text)
        return
    text = block.text.replace("http://127.0.0.1:8000", url)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        exec(compile(text, block.page, "exec"), {"client": client})


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_a_configuration(block: Block) -> None:
    content = yaml.safe_load(block.text)
    if isinstance(content, dict) and content.keys() & {"args", "deployments"}:
        check_application(content)
    elif isinstance(content, list) and content[0].get("name") in ("Engine", "Ingress"):
        check_application({"deployments": content})
    elif not set(OTHER_YAML) & set(content if isinstance(content, dict) else content[0]):
        parse_config(content)


def check_application(content: dict[str, Any]) -> None:
    whole = yaml.safe_load((ROOT / "serve_config.yaml").read_text(encoding="utf-8"))
    whole["applications"][0] |= content
    ServeDeploySchema.model_validate(whole)
    parse_config(content.get("args", {}))


@pytest.mark.parametrize("block", blocks("shell"), ids=str)
def test_commands_exist_and_take_these_words(block: Block, url: str) -> None:
    found = commands(block.text)
    assert found
    for words in found:
        check_command(words, url)


def check_command(words: list[str], url: str) -> None:
    program, *rest = words
    if program == "make":
        check_make(rest)
    elif program == "pagoda":
        make_parser(rest).parse_args(rest)
    elif program == "curl":
        check_curl(rest, url)
    elif program == "docker":
        check_docker(rest)
    elif program == "helm":
        check_helm(rest)
    elif program == "kubectl":
        assert rest[:2] == ["create", "secret"]
    else:
        assert words[:3] == ["python", "-m", "load_tests"], words
        check_load_tests(rest[2:])


def check_docker(words: list[str]) -> None:
    """Arguments of a build are those of the Dockerfile, what runs in it is a command of ours."""
    content = (ROOT / "Dockerfile").read_text()
    for word, value in pairwise(words):
        if word == "--build-arg":
            assert f"ARG {value.partition('=')[0]}" in content, value
    if "pagoda" in words:
        inner = words[words.index("pagoda") + 1 :]
        make_parser(inner).parse_args(inner)


def check_helm(words: list[str]) -> None:
    """The chart is there, and what is set are values of it, or options of the server."""
    chart = ROOT / "deploy/chart/pagoda"
    assert words[0] == "test" or words[2] == str(chart.relative_to(ROOT))
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    for word, value in pairwise(words):
        if word in ("--set", "--set-json"):
            first, *names = value.partition("=")[0].split(".")
            if first == "options":
                parse_config({names[0]: value.partition("=")[2]})
                continue
            place = values[first]
            for name in names:
                place = place[name]


def check_make(words: list[str]) -> None:
    target, *variables = words
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    for variable in variables:
        name, _, value = variable.partition("=")
        assert name in ("ARGS", "CONFIG", "PYTHON", "WORKERS"), variable
        if target == "bench":
            check_load_tests(value.split())


def check_load_tests(words: list[str]) -> None:
    name, *rest = words
    parser = argparse.ArgumentParser()
    load_command(MODULES[name]).add_arguments(parser)
    parser.parse_args(rest)


def check_curl(words: list[str], url: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("-X")
    parser.add_argument("-s", action="store_true")
    given = parser.parse_args(words)
    body = json.loads(given.d) if given.d else None
    if body and "model" in body:
        body["model"] = "SmolLM2-135M-Instruct"
    method = given.X or ("POST" if body else "GET")
    path = urlsplit(given.url).path
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        answer = http.request(method, path, json=body)
    # the prefix of an example has not been pinned here
    assert answer.is_success or "no pinned prefix" in answer.text, answer.text


def test_commands_over_several_lines_are_one() -> None:
    text = 'curl URL -d \'{\n "a": 1}\'  # said\nmake x \\\n  ARGS="a b"\n\n# only that\n'
    assert commands(text) == [
        ["curl", "URL", "-d", '{\n "a": 1}'],
        ["make", "x", "ARGS=a b"],
    ]
    with pytest.raises(ValueError, match="'open"):
        commands("curl 'open")


def test_there_are_blocks_of_each_kind() -> None:
    assert len(blocks("python")) >= 4
    assert len(blocks("yaml")) >= 8
    assert len(blocks("shell")) >= 12
