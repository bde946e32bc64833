import re
from pathlib import Path

import pytest

from load_tests.model_folders import model_folder
from load_tests.simulator.calibrate.live_worker import LiveWorker, live_config
from load_tests.simulator.calibrate.measure import calibrate
from load_tests.simulator.calibrate.points import Points


def _times_ms(lines: list[str], what: str) -> list[list[float]]:
    """The times of each line about what was measured, in ms."""
    rests = [line.removeprefix(what) for line in lines if line.startswith(what)]
    return [[float(number) for number in re.findall(r"\d+\.\d+", rest)] for rest in rests]


def test_the_least_of_all_rounds_counts(tmp_path: Path) -> None:
    folder = model_folder("tiny", tmp_path)
    worker = LiveWorker(
        live_config(
            folder,
            "cpu",
            "float32",
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=128,
            num_blocks=100,
        )
    )
    points = Points(
        batches=(2, 4), contexts=(24, 64), prompt_lens=(8, 32), mixed_batches=(4,),
        repeats=3, num_mixed=2, rounds=2,
    )  # fmt: skip
    lines: list[str] = []
    table = calibrate(worker, points, lines.append)
    worker.close()
    assert table.mixed
    for what, kept in (
        ("decode 2:", table.decode_s[0]),
        ("decode 4:", table.decode_s[1]),
        ("prefill:", table.prefill_s),
        ("prompts beside 4 decodes:", table.mixed.added_s[0]),
    ):
        first, second = _times_ms(lines, what)
        least = [min(times) for times in zip(first, second, strict=True)]
        assert [1e3 * seconds for seconds in kept] == pytest.approx(least, abs=0.006)
