"""The files of a server under load, and what it says of itself."""

import argparse
from pathlib import Path

import yaml

from load_tests.overload.server import add_server_arguments, values_of, write_files


def test_a_server_has_its_keys_and_options(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    args = parser.parse_args(["--port", "18123", "--max-num-seqs", "5"])
    options = {"deadlines": {"queue_s": 7.0}}
    lines = ["one weight=1", "two weight=3"]
    config = yaml.safe_load(
        write_files(args, tmp_path, tmp_path, lines, "operator", options).read_text()
    )
    [application] = config["applications"]
    served = application["args"]
    assert served["deadlines"] == {"queue_s": 7.0}
    assert served["max_num_seqs"] == 5
    assert Path(served["api_keys_file"]).read_text().splitlines() == lines
    assert Path(served["operator_keys_file"]).read_text() == "operator"
    assert config["http_options"]["port"] == 18123


def test_values_of_replicas_are_added_up() -> None:
    text = """\
# TYPE pagoda_prompt_tokens_total counter
pagoda_prompt_tokens_total{source="computed",model_name="m",replica="a"} 640.0
pagoda_prompt_tokens_total{source="computed",model_name="m",replica="b"} 60.0
pagoda_prompt_tokens_total{source="cached",model_name="m",replica="a"} 64.0
pagoda_generated_tokens_total{model_name="m",replica="a"} 7.0
"""
    assert values_of(text, "pagoda_prompt_tokens_total") == {
        'source="computed"': 700.0,
        'source="cached"': 64.0,
    }
    assert values_of(text, "pagoda_generated_tokens_total") == {"": 7.0}
