"""The benchmark of sums needs GPUs, and writes what it measured on them."""

import json
from pathlib import Path

import pytest
import torch

from load_tests.__main__ import main


def test_more_ranks_than_gpus_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["sums", "--ranks", "99", "--output", str(tmp_path)])
    assert "99 ranks need as many GPUs" in capsys.readouterr().err


@pytest.mark.gpu
def test_every_way_is_checked_and_timed(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    words = ["sums", "--ranks", "2", "--rows", "1,80", "--width", "64"]
    assert main([*words, "--output", str(tmp_path)]) == 0
    [path] = tmp_path.glob("sums_*.json")
    times = json.loads(path.read_text())["us"]
    assert {way: len(found) for way, found in times.items()} == {
        "tagged": 1,
        "one_shot": 2,
        "two_shot": 2,
        "nccl": 2,
    }
