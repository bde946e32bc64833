"""The command `chats` on the tiny model."""

import json
from pathlib import Path

from load_tests.__main__ import main

_SMALL = ["--chats", "4", "--turns", "4", "--user", "40", "--answer", "8", "--in-flight", "1"]


def test_lost_prefixes_come_back_from_the_swap_space(tmp_path: Path) -> None:
    words = ["--private", "--pool-share", "0.4", "--output", str(tmp_path)]
    assert main(["chats", *_SMALL, *words]) == 0
    [path] = tmp_path.glob("*.json")
    figures = json.loads(path.read_text())
    shares = {
        name: run["cached_tokens"] / run["prompt_tokens"] for name, run in figures["runs"].items()
    }
    assert shares["off"] < 0.3 < 0.5 < shares["on"]
    assert figures["cached share beside unbounded"] >= 0.9
    assert all(len(run["ttft_s"]) == 16 for run in figures["runs"].values())
