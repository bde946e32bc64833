"""Counters and traces beside what clients have got, also where processes are killed."""

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from load_tests.bench.startup.server_process import ServerProcess, serving
from load_tests.faults.answers import Received, ask
from load_tests.faults.mix import MixedRequest, draw_cases
from load_tests.faults.server import serving_options, small_model, vocab_size, write_config
from load_tests.faults.victims import FAULTS
from load_tests.free_port import free_port
from tests import ROOT
from tests.app.api.answers import events
from tests.app.api.server import COMPLETIONS
from tests.deployed.asking import KINDS
from tests.deployed.asking import ask as ask_all
from tests.deployed.ledger import Samples, gained, root_of, total, traced

pytestmark = pytest.mark.ray

NUM_CASES = 48
OUTPUT_LEN = 48
NUM_REPLICAS = 2
# fewer than half of what the requests want at once
NUM_BLOCKS = 160


async def test_metrics_say_what_clients_have_got(http: httpx.AsyncClient) -> None:
    before = (await http.get("/metrics")).content
    fields: dict[str, Any] = {"prompt": "Once", "max_tokens": 4}
    usage = {"stream_options": {"include_usage": True}}
    bodies = [fields | kind | (usage if kind.get("stream") else {}) for kind in KINDS]
    refused = {"prompt": "Once", "max_tokens": -1}
    answers = await ask_all(http, COMPLETIONS, *bodies, refused)
    after = (await http.get("/metrics")).content
    found = gained(before, after)
    usages = [
        events(answer.text)[-1]["usage"] if body.get("stream") else answer.json()["usage"]
        for body, answer in zip(bodies, answers, strict=False)
    ]
    assert total(found, "requests_total") == len(bodies) + 1
    assert total(found, "requests_total", "outcome=refused") == 1
    assert total(found, "http_requests_total", "code=400") == 1
    assert total(found, "output_tokens_total") == sum(each["completion_tokens"] for each in usages)
    prompt_tokens = sum(each["prompt_tokens"] for each in usages)
    assert total(found, "request_prompt_tokens_sum") == prompt_tokens
    assert total(found, "prompt_tokens_total") == prompt_tokens
    assert total(found, "time_to_first_token_seconds_count") == len(bodies)
    assert total(found, "gang_lost_total") == total(found, "resumes_total") == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_metrics_and_traces_say_what_clients_have_got_whatever_was_killed() -> None:
    # paths of Ray's sockets have a limit of 107 characters, too few for pytest's folders
    with tempfile.TemporaryDirectory(prefix="pagoda_") as name:
        folder = Path(name)
        answers: list[Received] = []
        with serving_small(folder) as (server, url, cases):
            async with aiohttp.ClientSession(trust_env=False) as session:
                for number, fault in enumerate(("worker-killed", "scheduler-killed")):
                    answers += await asked_while(server, session, url, cases, fault, number)
                found = await settled(session, url)
                check_clients(found, answers)
                check_engines(found, answers)
                # its counters go with it, but not those of the ingress
                answers += await asked_while(
                    server, session, url, cases, "engine-replica-killed", 2
                )
                found = await settled(session, url)
                check_clients(found, answers)
            # what waits to be written is written at the end
            server.interrupt()
            server.exit_code(120.0)
        check_traces(folder / "traces", found, answers)


@contextmanager
def serving_small(folder: Path) -> Iterator[tuple[ServerProcess, str, list[MixedRequest]]]:
    """Two engine replicas with little KV cache; all requests are traced."""
    model, port = small_model(folder / "model"), free_port()
    options = serving_options(model, "cpu") | {
        "num_blocks": NUM_BLOCKS,
        "max_model_len": 512,
        "tracing": {
            "protocol": "file",
            "endpoint": str(folder / "traces"),
            "ratio": 1.0,
            "max_traces_per_s": 10_000,
        },
    }
    config, url = folder / "serve_config.yaml", f"http://127.0.0.1:{port}"
    write_config(
        ROOT / "serve_config.yaml", config, port=port, replicas=NUM_REPLICAS, options=options
    )
    cases = draw_cases(
        NUM_CASES, seed=1, vocab_size=vocab_size(model), output_len=OUTPUT_LEN, fields={}
    )
    with serving(config, url, folder / "log", os.environ | {"RAY_TMPDIR": str(folder)}) as server:
        server.seconds_until_healthy(300.0)
        yield server, url, cases


async def asked_while(
    server: ServerProcess,
    session: aiohttp.ClientSession,
    url: str,
    cases: list[MixedRequest],
    fault: str,
    seed: int,
) -> list[Received]:
    """Send all requests at once, and kill a process when the first piece of an answer came."""
    victim = FAULTS[fault].choose(server.processes(), random.Random(seed))
    tasks = [asyncio.create_task(ask(session, url, case)) for case in cases]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    victim.send_signal(signal.SIGKILL)
    return await asyncio.gather(*tasks)


async def settled(session: aiohttp.ClientSession, url: str) -> Samples:
    """Return all metrics, once both engine replicas serve again; gangs count as lost then."""
    while True:
        async with session.get(f"{url}/metrics") as response:
            found = gained(b"", await response.read())
        if total(found, "ready") == NUM_REPLICAS:
            return found
        await asyncio.sleep(0.5)


def check_clients(found: Samples, answers: list[Received]) -> None:
    """What the ingress counts is what clients have got."""
    complete = [answer for answer in answers if answer.is_complete]
    assert len(complete) == len(answers), {answer.error for answer in answers}
    assert total(found, "requests_total") == len(answers)
    ends = [total(found, "requests_total", f"outcome={name}") for name in ("length", "stop")]
    assert sum(ends) == len(answers)
    tokens = sum(answer.completion_tokens for answer in answers)
    assert total(found, "output_tokens_total") == tokens
    assert total(found, "choice_output_tokens_sum") == tokens
    assert total(found, "time_to_first_token_seconds_count") == len(answers)
    assert total(found, "http_requests_total", "code=200", "route=/v1/completions") == len(answers)
    assert total(found, "resumes_total") > 0


def check_engines(found: Samples, answers: list[Received]) -> None:
    """What the engine replicas count is, too; none of them was lost so far."""
    assert total(found, "gang_lost_total") == 2
    assert total(found, "preemptions_total") > 0
    assert total(found, "requests") == 0
    slots = total(found, "kv_slots")
    assert slots == total(found, "kv_capacity_slots") > 0
    tokens = sum(answer.completion_tokens for answer in answers)
    assert total(found, "generated_tokens_total") == tokens


def check_traces(folder: Path, found: Samples, answers: list[Received]) -> None:
    """There is a tree for each request, and they add up to the metrics."""
    trees = traced(folder)
    roots = [root_of(spans) for spans in trees.values()]
    assert len(roots) == len(answers)
    tokens = sum(answer.completion_tokens for answer in answers)
    assert sum(root.attributes["gen_ai.usage.output_tokens"] for root in roots) == tokens
    spans = [span for each in trees.values() for span in each]
    num_resumed = sum(span.name == "resume" for span in spans)
    assert num_resumed == total(found, "resumes_total")
    assert sum(root.attributes["pagoda.resumes"] for root in roots) == num_resumed
    # a request that was swapped out and then recomputed is away once
    num_away = sum(span.name == "preempted" for span in spans)
    assert 0 < num_away <= sum(root.attributes["pagoda.preemptions"] for root in roots)
    for each in trees.values():
        assert {"read", "submit", "queue", "prefill", "decode"} <= {span.name for span in each}
