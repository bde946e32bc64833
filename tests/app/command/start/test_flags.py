import argparse
from typing import Any

import pytest

from app.command.start.flags import add_option_flags, given_options, with_options
from app.settings.reference import all_options
from engine.errors import ConfigError


def given(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_option_flags(parser)
    return given_options(parser.parse_args(words))


def test_every_option_has_a_flag_with_its_text() -> None:
    parser = argparse.ArgumentParser()
    add_option_flags(parser)
    text = parser.format_help()
    for name in all_options():
        assert f"--{name.replace('_', '-')} " in text, name


def test_flags_become_options_of_their_types() -> None:
    words = ["--max-num-seqs", "8", "--no-prefix-cache", "--dtype", "float32", "--model", "1"]
    words += ["--limits.max-body-mib", "0.5", "--cors-origins", "[https://a.example]"]
    found = given(*words)
    assert found == {
        "max_num_seqs": 8,
        "prefix_cache": False,
        "dtype": "float32",
        "model": "1",
        "limits.max_body_mib": 0.5,
        "cors_origins": ["https://a.example"],
    }
    args = with_options({"limits": {"max_body_values": 2048}}, found)
    assert args["limits"] == {"max_body_values": 2048, "max_body_mib": 0.5}


@pytest.mark.parametrize(("text", "number"), [("4k", 4000), ("4K", 4096), ("1.5k", 1500)])
def test_numbers_may_have_a_multiple(text: str, number: int) -> None:
    assert given("--max-model-len", text) == {"max_model_len": number}


def test_flags_overrule_set_and_that_the_file() -> None:
    found = given("--set", "max_num_seqs=4", "--set", "watermark=0.1", "--max-num-seqs", "8")
    assert with_options({"max_num_seqs": 2, "model": "m"}, found) == {
        "max_num_seqs": 8,
        "watermark": 0.1,
        "model": "m",
    }


def test_a_bad_name_or_value_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        with_options({}, given("--set", "max_num_seq=4"))
    with pytest.raises(ConfigError, match="OPTION=VALUE"):
        given("--set", "max_num_seqs")
    with pytest.raises(ConfigError, match="no YAML value"):
        given("--max-num-seqs", "[")
