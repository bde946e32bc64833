import json
from pathlib import Path
from typing import Any

import pytest

from app.settings.sampling_defaults import read_sampling_defaults
from engine.errors import ConfigError


def read(folder: Path, content: Any) -> Any:
    (folder / "generation_config.json").write_text(json.dumps(content))
    return read_sampling_defaults(folder)


def test_a_folder_without_the_file_has_no_defaults(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == {}


def test_fields_of_requests_are_defaults_and_others_are_not(tmp_path: Path) -> None:
    defaults = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0,
        "repetition_penalty": 1.05,
        "presence_penalty": 1.5,
        "frequency_penalty": 0.5,
    }
    others = {"do_sample": True, "eos_token_id": [1, 2], "max_new_tokens": 9, "n": 3, "seed": 1}
    assert read(tmp_path, defaults | others) == defaults


def test_null_is_no_default(tmp_path: Path) -> None:
    assert read(tmp_path, {"temperature": None, "top_k": 0}) == {"top_k": 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 2.5), ("temperature", "hot"), ("top_p", 0), ("top_k", True), ("min_p", -1)],
)
def test_what_no_request_could_have_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {name} is {value!r}: "):
        read(tmp_path, {name: value})


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"generation_config\.json holds list"):
        read_sampling_defaults(tmp_path)
