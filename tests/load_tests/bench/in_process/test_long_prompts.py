"""Long prompts of the tiny model on the CPU."""

import json
from pathlib import Path

from load_tests.__main__ import main


def test_a_prompt_is_timed_by_chunks_and_beside_others(tmp_path: Path) -> None:
    words = ["prompts", "--lengths", "60", "--chunks", "16,32", "--beside", "2"]
    words += ["--num-blocks", "64", "--max-model-len", "128", "--max-num-batched-tokens", "16"]
    assert main([*words, "--output", str(tmp_path), "--log"]) == 0
    [path] = tmp_path.glob("prompts_*.json")
    figures = json.loads(path.read_text())["prompts"]
    assert [(f["length"], f["chunk"], f["beside"]) for f in figures] == [
        (60, 16, 0),
        (60, 32, 0),
        (60, 16, 2),
    ]
    assert all(0 < f["step_p50_s"] <= f["step_max_s"] <= f["prompt_s"] for f in figures)
    assert "60 by 16: " in (tmp_path / "LOG.md").read_text()
