"""Single steps of the tiny model on the CPU."""

import json
from pathlib import Path

from load_tests.__main__ import main


def test_steps_of_every_batch_and_mixed_ones_are_timed(tmp_path: Path) -> None:
    words = ["step", "--batches", "1,2", "--inputs", "8", "--steps", "16", "--chunks", "4"]
    words += ["--num-blocks", "64", "--max-model-len", "512"]
    assert main([*words, "--output", str(tmp_path), "--log"]) == 0
    [path] = tmp_path.glob("step_*.json")
    document = json.loads(path.read_text())
    steps = document["steps"]
    assert [(step["batch"], step["chunk"]) for step in steps] == [(1, 0), (2, 0), (1, 4)]
    assert all(step["step_s"] > 0 and step["num_steps"] > 0 for step in steps)
    assert document["config"]["num_blocks"] == 64
    assert path.with_suffix(".png").stat().st_size > 1000
    assert "batch 1: " in (tmp_path / "LOG.md").read_text()
