import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.bench.serving.command import MEASURES, Pass, add_arguments, cases_of, compare
from tests.load_tests import own_process
from tests.load_tests.free_port import free_port

PASS = Pass(
    server="a",
    case="15 req/s",
    ttft_p50=10.0,
    ttft_p99=30.0,
    tpot_p50=5.0,
    gap_p99=20.0,
    tokens_per_s=400.0,
    server_cpu_s=2.0,
    num_failed=0,
    invalid=None,
)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_medians_of_the_passes_of_each_server_are_compared() -> None:
    passes = [replace(PASS, ttft_p99=ms) for ms in (30.0, 90.0, 40.0)]
    passes += [replace(PASS, server="b", ttft_p99=ms) for ms in (80.0, 1.0, 100.0)]
    rows = {row[1].split()[0]: row for row in compare(passes, ["a", "b"])}
    assert list(rows) == list(MEASURES)
    assert rows["ttft_p99"][2:] == ("40.0", "80.0", "0.50 x")
    assert rows["tokens_per_s"][2:] == ("400.0", "400.0", "1.00 x")


def test_cases_are_compared_apart() -> None:
    other = replace(PASS, case="256 in flight", tpot_p50=7.0)
    passes = [PASS, other, replace(PASS, server="b"), replace(other, server="b", tpot_p50=14.0)]
    tpots = [row for row in compare(passes, ["a", "b"]) if row[1].startswith("tpot")]
    assert [(row[0], row[-1]) for row in tpots] == [
        ("15 req/s", "1.00 x"),
        ("256 in flight", "0.50 x"),
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"num_failed": 2}, "2 requests failed"),
        ({"invalid": "client lag"}, "client lag"),
    ],
)
def test_a_pass_counts_if_all_were_answered_and_the_client_kept_up(
    changes: dict[str, object], fault: str | None
) -> None:
    assert replace(PASS, **changes).fault == fault  # type: ignore[arg-type]


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
    assert [one["server"] for one in passes] == ["pagoda", "pagoda again"] * 2
    assert all(one["num_failed"] == 0 and one["server_cpu_s"] > 0 for one in passes)
