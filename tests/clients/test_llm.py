"""https://pypi.org/project/llm: the command, with a model of extra-openai-models.yaml."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.clients.asked import MODEL

pytest.importorskip("llm")
# what clients leave open, and what they import, is theirs
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_a_prompt(url: str, tmp_path: Path, options: list[str]) -> None:
    known = [{"model_id": "pagoda", "model_name": MODEL, "api_base": url, "can_stream": True}]
    (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump(known))
    command = [sys.executable, "-m", "llm", "-m", "pagoda", "-o", "max_tokens", "16", *options]
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(
        [*command, "What will the weather be?"],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
