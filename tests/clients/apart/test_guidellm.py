"""https://pypi.org/project/guidellm: a minute of completions and one of chats, at a fixed rate."""

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
    written = tmp_path / "report.json"
    run_apart(
        [
            "guidellm", "run",
            "--backend", f"kind=openai_http,target={deployed.url},model={MODEL},"
            "request_format=/v1/completions",
            "--profile", f"kind=constant,rate={RATE_PER_S}",
            "--constraint", f"kind=max_duration,seconds={SECONDS}",
            "--tokenizer", f"kind=huggingface_auto,model={embedded_model()}",
            "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_LEN},output_tokens={OUTPUT_LEN}",
            "--output", f"kind=json,path={written}",
            "--disable-console-interactive",
        ],
        tmp_path,
        5 * SECONDS,
    )  # fmt: skip
    [benchmark] = json.loads(written.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["errored"] == 0, benchmark["requests"]["errored"][0]
    # the last ones are cut off by the end of the minute
    assert totals["successful"] + totals["incomplete"] >= 0.95 * RATE_PER_S * SECONDS
    whole = benchmark["requests"]["successful"]
    assert {each["output_metrics"]["text_tokens"] for each in whole} == {OUTPUT_LEN}
    # a text of so many tokens is not cut into the same ones when it is read again
    prompts = [each["input_metrics"]["text_tokens"] for each in whole]
    assert all(0.8 * PROMPT_LEN <= each <= 1.2 * PROMPT_LEN for each in prompts)
