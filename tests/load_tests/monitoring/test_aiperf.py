import json
from pathlib import Path
from typing import Any

import pytest

from load_tests.monitoring.aiperf import AiperfLoad, means_of

REPORT: dict[str, Any] = {
    "time_to_first_token": {"unit": "ms", "avg": 36.0},
    "inter_token_latency": {"unit": "ms", "avg": 10.0},
    "request_latency": {"unit": "ms", "avg": 200.0},
    "total_output_tokens": {"unit": "tokens", "avg": 320.0},
    "benchmark_duration": {"unit": "sec", "avg": 8.0},
    "error_summary": [],
}


def load(program: Path) -> AiperfLoad:
    return AiperfLoad(
        program=program,
        url="http://127.0.0.1:9",
        model="tiny",
        tokenizer=Path("/model"),
        concurrency=4,
        num_requests=20,
        prompt_len=32,
        output_len=16,
    )


def stand_in(path: Path, lines: str) -> Path:
    """A program that leaves what it was called with, and does something."""
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >words\n{lines}\n")
    path.chmod(0o700)
    return path


def test_its_report_is_read(tmp_path: Path) -> None:
    text = json.dumps(REPORT)
    program = stand_in(tmp_path / "aiperf", f"cat >profile_export_aiperf.json <<'END'\n{text}\nEND")
    means = load(program).run(tmp_path / "out")
    assert (means.first_s, means.gap_s, means.whole_s) == (0.036, 0.01, 0.2)
    assert (means.num_tokens, means.load_s) == (320.0, 8.0)
    words = (tmp_path / "out" / "words").read_text().split()
    assert words[0] == "profile"
    given = [words[words.index(name) + 1] for name in ("--isl", "--osl", "--concurrency")]
    assert given == ["32", "16", "4"]


def test_an_error_of_its_own_is_shown(tmp_path: Path) -> None:
    program = stand_in(tmp_path / "aiperf", "echo no such model; exit 3")
    with pytest.raises(ValueError, match="no such model"):
        load(program).run(tmp_path / "out")


def test_requests_that_failed_make_no_figures() -> None:
    with pytest.raises(ValueError, match="failed"):
        means_of(REPORT | {"error_summary": [{"code": 500}]})
