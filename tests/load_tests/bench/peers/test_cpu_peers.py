import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from tests.engine.model.tiny import save_tiny
from tests.load_tests import own_process
from tests.load_tests.fake_server import FakeServer


def run_command(*options: str) -> "subprocess.CompletedProcess[str]":
    # the command sets the number of threads itself
    return own_process.run("cpu_peers", "--quick", *options, without="OMP_NUM_THREADS")


@pytest.mark.slow
async def test_all_systems_do_the_same_work_and_agree(tmp_path: Path) -> None:
    save_tiny("tied_llama3", tmp_path / "model")
    server = FakeServer()
    async with server.running() as url:
        options = ("--model", str(tmp_path / "model"), "--http", url, "--check", "--log")
        done = await asyncio.to_thread(run_command, *options, "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = await asyncio.to_thread(lambda: list(tmp_path.glob("cpu_peers_*.json")))
    figures = json.loads(path.read_text())
    assert figures["check"] == {"equal": 3, "compared": 3}
    assert [turn["system"] for turn in figures["turns"]][::2] == [
        "pagoda",
        "generate, dynamic cache",
        "generate, static cache",
        "continuous batching",
        "pagoda",
    ]
    assert {(row["batch"], row["system"]) for row in figures["speeds"]} >= {
        (1, "pagoda over HTTP, plain"),
        (2, "pagoda over HTTP, streamed"),
        (2, "generate, static cache"),
    }
    assert all(row["median"] > 0 for row in figures["speeds"])
    assert "x generate" in (tmp_path / "LOG.md").read_text()
    assert "of the speed in process" in done.stdout
    measured = [str(body["prompt"]) for body in server.seen if body["max_tokens"] == 8]
    assert len(set(measured)) == len(measured) == 2 * (1 + 2)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    done = run_command("--model", str(tmp_path))
    assert done.returncode == 2
    assert "is neither a model folder" in done.stderr


def test_vllm_needs_an_interpreter() -> None:
    done = run_command("--peers", "vllm")
    assert done.returncode == 2
    assert "needs --vllm-python" in done.stderr
