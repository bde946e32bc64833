from pathlib import Path

import pytest

from engine.model_config import read_model_config
from load_tests.model_folders import SHAPES, dtype_of, load_format_of, model_folder


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_of_supported_models(name: str, tmp_path: Path) -> None:
    folder = model_folder(name, tmp_path)
    assert read_model_config(folder).max_position >= 2048
    assert load_format_of(folder) == "dummy"
    assert dtype_of(folder) == SHAPES[name]["torch_dtype"]
