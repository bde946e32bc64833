"""vLLM as a child process, with a module in its place that continues prompts by counting."""

import os
import sys
from pathlib import Path

import pytest

from load_tests.bench.peers.cpu_comparison import EqualWork, measure
from load_tests.bench.peers.vllm_cpu import VllmCpu, preloads

FAKE = """
import os
from types import SimpleNamespace
__version__ = "0.test"
class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize):
        assert (temperature, ignore_eos) == (0.0, True)
        self.max_tokens = max_tokens
class LLM:
    def __init__(self, model, dtype, max_model_len, max_num_seqs, enable_prefix_caching):
        assert (dtype, enable_prefix_caching) == ("bfloat16", False)
        # what it prints must not get between the answers
        print(f"{model} {max_model_len} {max_num_seqs} threads {os.environ['OMP_NUM_THREADS']}")
    def generate(self, prompts, params, use_tqdm):
        print("generating")
        ids = [range(p["prompt_token_ids"][-1] + 1, 1 << 30) for p in prompts]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=i[:params.max_tokens])]) for i in ids]
"""  # noqa: E501


def environment(folder: Path, script: str) -> Path:
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def start(python: Path, folder: Path) -> VllmCpu:
    return VllmCpu(python, Path("/m"), folder / "log", threads=2, max_model_len=24, max_num_seqs=4)


def test_it_is_measured_like_the_others(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(FAKE)
    script = f'PYTHONPATH={tmp_path} exec {sys.executable} "$@"'
    vllm = start(environment(tmp_path / "env", script), tmp_path)
    assert vllm.name == "vLLM 0.test"
    assert vllm.generate([[1, 2], [7]], 3) == [[3, 4, 5], [8, 9, 10]]
    before = vllm.cpu_s()
    assert before > 0
    work = EqualWork(batches=(1, 2), repeats=1, input_len=4, output_len=2, vocab_size=50, seed=0)
    measured = measure(vllm, work)
    assert [(turn.system, turn.batch) for turn in measured] == [("vLLM 0.test", n) for n in (1, 2)]
    # of its process, not of this one
    spent = sum(turn.timings[0].cpu_s for turn in measured)
    assert 0 < spent <= vllm.cpu_s() - before
    vllm.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "/m 24 4 threads 2"
    assert lines[1:] == ["generating"] * 5


def test_an_installation_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", "echo no such module >&2; exit 1")
    with pytest.raises(ValueError, match=f"{tmp_path}/log says why"):
        start(python, tmp_path)
    assert (tmp_path / "log").read_text() == "no such module\n"


def test_openmp_of_its_environment_is_preloaded(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", "exit 0")
    openmp = tmp_path / "env" / "lib" / "libiomp5.so"
    assert str(openmp) not in preloads(python)
    openmp.parent.mkdir()
    openmp.write_bytes(b"")
    assert str(openmp) in preloads(python)
    # the interpreter of an environment is a link to that of the system
    os.symlink("/usr/bin/python3", python.with_name("python3"))
    assert str(openmp) in preloads(python.with_name("python3"))
