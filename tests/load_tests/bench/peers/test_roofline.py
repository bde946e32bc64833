from pathlib import Path

import pytest

from engine.model_config import read_model_config
from load_tests.bench.peers.measures import Beam, Decode, Knobs, Measure, Offline, Online
from load_tests.bench.peers.roofline import least_seconds
from load_tests.card import datasheet
from load_tests.model_folders import model_folder
from load_tests.traffic.lognormal import draw_pairs

H100 = datasheet("NVIDIA H100 80GB HBM3")


def least_ms(name: str, measure: Measure, folder: Path) -> float | None:
    knobs = Knobs(
        model=name,
        dtype="bfloat16",
        device="cuda",
        block_size=16,
        num_blocks=27000,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=2048,
    )
    model = read_model_config(model_folder(name, folder))
    least = least_seconds(measure, model, knobs, H100)
    return None if least is None else 1e3 * least


# weights of 15.01 and 25.68 GB and the cache of all contexts at 3.35 TB/s, by hand
@pytest.mark.parametrize(
    ("name", "batch", "expected_ms"),
    [("llama3-8b", 1, 4.50), ("llama3-8b", 64, 5.76), ("opt-13b", 1, 7.79), ("opt-13b", 32, 11.68)],
)
def test_decode_steps_cannot_be_faster_than_memory(
    name: str, batch: int, expected_ms: float, tmp_path: Path
) -> None:
    measure = Decode(batch=batch, input_len=511, output_len=1, seed=0)
    assert least_ms(name, measure, tmp_path) == pytest.approx(expected_ms, abs=0.02)


def test_batches_are_replayed_step_by_step(tmp_path: Path) -> None:
    one = Decode(batch=2, input_len=100, output_len=10, seed=0)
    step_ms = least_ms("llama3-8b", one, tmp_path)
    beam = Beam(width=2, num_prompts=1, input_len=100, output_len=10, seed=0)
    search_ms = least_ms("llama3-8b", beam, tmp_path)
    assert step_ms is not None
    assert search_ms == pytest.approx(10 * step_ms, rel=0.02)
    trace = Offline(trace="alpaca", num_requests=20, seed=0)
    longest = max(output_len for _, output_len in draw_pairs("alpaca", 20, 0))
    # the last request to end has most of its steps to itself
    assert least_ms("llama3-8b", trace, tmp_path) == pytest.approx(4.55 * longest, rel=0.05)


def test_arrivals_set_their_own_pace(tmp_path: Path) -> None:
    online = Online(trace="alpaca", rate_per_s=1.0, duration_s=1.0, seed=0)
    assert least_ms("llama3-8b", online, tmp_path) is None
