"""Settings and measures of a tiny system, for tests."""

from pathlib import Path

from load_tests.bench.peers.measures import Beam, Decode, Knobs, Measure, Offline, Online

MEASURES: list[Measure] = [
    Offline(trace="alpaca", num_requests=5, seed=0),
    Decode(batch=2, input_len=8, output_len=4, seed=0),
    Decode(batch=3, input_len=8, output_len=4, seed=0, num_schemas=2),
    Beam(width=3, num_prompts=2, input_len=8, output_len=4, seed=0),
    Online(trace="alpaca", rate_per_s=20.0, duration_s=0.5, seed=0),
]


def knobs(model: Path) -> Knobs:
    return Knobs(
        model=str(model),
        dtype="float32",
        device="cpu",
        block_size=16,
        num_blocks=256,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=1024,
    )
