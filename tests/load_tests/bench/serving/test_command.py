import argparse
import json
from pathlib import Path

import pytest

from load_tests.bench.serving.command import add_arguments, cases_of
from load_tests.free_port import free_port
from tests.load_tests import own_process


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_each_rate_and_each_number_in_flight_is_a_case() -> None:
    cases = cases_of(parsed("--rate", "5,10", "--concurrency", "8,16", "--turnover", "4"))
    assert [case.label for case in cases] == [
        "5 req/s",
        "10 req/s",
        "closed loop, 8 in flight",
        "closed loop, 16 in flight",
    ]
    assert [case.concurrency for case in cases] == [None, None, 8, 16]
    assert [len(case.schedule) for case in cases[2:]] == [32, 64]


@pytest.mark.ray
@pytest.mark.slow
def test_two_servers_are_raced(tmp_path: Path) -> None:
    words = ["serving", "--model", "embedded", "--port", str(free_port()), "--passes", "1"]
    words += ["--rate", "4", "--duration-s", "2", "--concurrency", "2", "--turnover", "2"]
    words += ["--lengths", "fixed:8:4", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    done = own_process.run(*words, "--max-model-len", "128", "--output", str(tmp_path))
    assert "Medians of 1 passes" in done.stdout, done.stdout + done.stderr
    [file] = tmp_path.glob("serving_*.json")
    passes = json.loads(file.read_text())["passes"]
    servers = ["pagoda", "pagoda again"] * 2 + ["in process"] * 2
    assert [one["server"] for one in passes] == servers
    assert all(one["num_failed"] == 0 and one["server_cpu_s"] > 0 for one in passes)
