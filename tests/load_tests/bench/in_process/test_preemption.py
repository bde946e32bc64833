"""The command `preemption` on the tiny model."""

import json
from pathlib import Path

from load_tests.__main__ import main


def test_every_way_back_runs_at_every_block_size(tmp_path: Path) -> None:
    requests = ["--requests", "6", "--max-len", "100", "--pool-share", "0.4"]
    words = [*requests, "--block-sizes", "4,16", "--private", "--output", str(tmp_path)]
    assert main(["preemption", *words]) == 0
    [path] = tmp_path.glob("*.json")
    runs = json.loads(path.read_text())["runs"]
    assert [(run["block_size"], run["way"]) for run in runs] == [
        (size, way) for size in (4, 16) for way in ("recompute", "swap", "auto")
    ]
    assert all(run["preemptions"] > 0 and run["rate_per_s"] == 0 for run in runs)


def test_every_way_back_has_the_same_arrivals(tmp_path: Path) -> None:
    requests = ["--requests", "3", "--max-len", "100", "--pool-share", "0.4", "--rates", "40,50"]
    words = [*requests, "--block-sizes", "16", "--private", "--output", str(tmp_path)]
    assert main(["preemption", *words]) == 0
    [path] = tmp_path.glob("*.json")
    written = json.loads(path.read_text())
    assert [run["rate_per_s"] for run in written["runs"]] == [40.0] * 3 + [50.0] * 3
    [times] = written["times"]
    assert 0 < times["num_tokens"] <= 256
    assert min(times["swap_ms"], times["recompute_ms"]) > 0
