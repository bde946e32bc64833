"""The command `preemption` on the tiny model."""

import json
from pathlib import Path

from load_tests.__main__ import main


def test_every_way_back_runs_at_every_block_size(tmp_path: Path) -> None:
    requests = ["--requests", "6", "--max-len", "300", "--pool-share", "0.4"]
    words = [*requests, "--block-sizes", "4,16", "--private", "--output", str(tmp_path)]
    assert main(["preemption", *words]) == 0
    [path] = tmp_path.glob("*.json")
    runs = json.loads(path.read_text())["runs"]
    assert [(run["block_size"], run["way"]) for run in runs] == [
        (size, way) for size in (4, 16) for way in ("recompute", "swap", "auto")
    ]
    assert all(run["preemptions"] > 0 for run in runs)
