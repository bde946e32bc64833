"""Small and sparse models wait for the host longer than others."""

from pathlib import Path

import pytest

from engine.model_config import read_model_config
from engine.worker.graphs.launch_bound import is_launch_bound
from load_tests.model_folders import model_folder


# what steps took on an H200: 8B ones of 768 tokens run for longer than they are launched
@pytest.mark.parametrize(
    ("name", "is_bound", "is_not_bound"),
    [("llama3-8b", 64, 768), ("opt-13b", 64, 768), ("qwen3-30b-a3b", 2048, 6144)],
)
def test_it_depends_on_the_weights_that_tokens_pass(
    name: str, is_bound: int, is_not_bound: int, tmp_path: Path
) -> None:
    model = read_model_config(model_folder(name, tmp_path))
    assert is_launch_bound(model, is_bound)
    assert not is_launch_bound(model, is_not_bound)
