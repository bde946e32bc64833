"""Ranks as processes of a benchmark: they generate what one does, and say what failed."""

from pathlib import Path

import pytest

from load_tests.local_engine import LocalEngine, local_config
from load_tests.model_folders import model_folder

_PROMPTS = [[11, 12, 13], [14] * 20]


@pytest.mark.slow
def test_two_ranks_generate_what_one_does(tmp_path: Path) -> None:
    folder = model_folder("tiny", tmp_path)
    sizes = {"num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    outputs = []
    for num_ranks in (1, 2):
        config = local_config(
            folder, "cpu", max_model_len=128, tensor_parallel_size=num_ranks, **sizes
        )
        engine = LocalEngine(config)
        outputs.append(engine.generate(_PROMPTS, 8))
        engine.close()
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    folder = model_folder("tiny", tmp_path)
    config = local_config(
        folder, "cpu", max_model_len=128, max_num_seqs=4, tensor_parallel_size=3,
        max_num_batched_tokens=64,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"rank 0: ConfigError: 2 key-value heads"):
        LocalEngine(config)
