"""The command `swap` on the tiny model."""

import json
from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.bench.in_process.swap import _middle

_SMALL = ["--gib", "0.001", "--batch", "2", "--input", "8", "--steps", "20", "--num-blocks", "200"]


def test_moves_and_steps_beside_them_are_timed(tmp_path: Path) -> None:
    words = ["--private", "--step-blocks", "4", "--output", str(tmp_path)]
    assert main(["swap", *_SMALL, *words]) == 0
    [path] = tmp_path.glob("*.json")
    figures = json.loads(path.read_text())
    assert figures["place"] == "private memory"
    assert min(figures["out GB/s"], figures["in GB/s"], figures["ratio in"]) > 0
    assert figures["step ms"] > 0


def test_steps_without_the_whole_batch_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="no step held the whole batch"):
        _middle([1.0] * 16)
    assert _middle([9.0] * 8 + [1.0] + [9.0] * 8) == [1.0]
