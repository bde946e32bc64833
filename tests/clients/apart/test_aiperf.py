"""https://pypi.org/project/aiperf: a minute of streamed completions, at a fixed rate."""

import json
from pathlib import Path

import pytest

from load_tests.model_folders import embedded_model
from tests.clients.apart.environment import (
    OUTPUT_LEN,
    PROMPT_LEN,
    RATE_PER_S,
    SECONDS,
    run_apart,
)
from tests.clients.asked import MODEL
from tests.deployed.serve_run import Deployed

pytestmark = [pytest.mark.clients, pytest.mark.ray]


@pytest.mark.timeout(6 * SECONDS)
def test_no_request_fails_and_lengths_are_as_asked(deployed: Deployed, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    run_apart(
        [
            "aiperf", "profile", "--model", MODEL, "--url", deployed.url,
            "--endpoint-type", "completions", "--streaming",
            "--tokenizer", str(embedded_model()),
            "--request-rate", str(RATE_PER_S), "--request-rate-mode", "constant",
            "--benchmark-duration", str(SECONDS),
            "--isl", str(PROMPT_LEN), "--isl-stddev", "0",
            "--osl", str(OUTPUT_LEN), "--osl-stddev", "0",
            "--extra-inputs", "ignore_eos:true", "--use-server-token-count",
            "--artifact-dir", str(artifacts), "--ui", "none",
        ],
        tmp_path,
        5 * SECONDS,
    )  # fmt: skip
    found = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    assert not found["error_summary"], found["error_summary"]
    assert found["request_count"]["avg"] >= 0.95 * RATE_PER_S * SECONDS
    output = found["output_sequence_length"]
    assert (output["min"], output["max"]) == (OUTPUT_LEN, OUTPUT_LEN)
    assert abs(found["input_sequence_length"]["avg"] - PROMPT_LEN) <= 0.2 * PROMPT_LEN
