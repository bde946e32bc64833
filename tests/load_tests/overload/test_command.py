"""What `overload` asks of a server, and what it shows."""

import argparse
from pathlib import Path

import pytest
import yaml

from app.settings.api_keys import read_api_keys
from load_tests.overload import command
from load_tests.overload.figures import OverloadFigures

FIGURES = OverloadFigures(
    capacity=1000.0,
    goodput=960.0,
    num_whole=600,
    num_refused=1200,
    num_expired=3,
    num_other=0,
    num_computed=600,
    first_token_s=(12.0, 29.0),
    refusal_s=(0.002, 0.011),
    probe_s=0.9,
    shares=(0.25, 0.75),
    cpu_ms={"proxy": (1.0, 0.2), "worker": (50.0, -0.1), "idle": (0.0, 0.0)},
)


def test_all_that_is_promised_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    command._show(FIGURES, 30.0)
    shown = capsys.readouterr().out
    for text in ("0.96", "600, 1200, 3", "12.000 / 29.000", "0.002 / 0.011", "0.25 : 0.75"):
        assert text in shown
    assert "worker" in shown
    assert "idle" not in shown
    assert "goodput 0.96 of capacity" in command._headline(FIGURES)


def test_a_server_has_keys_of_the_weights_and_one_for_the_probe(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--port", "18123", "--queue-s", "7"])
    config = command._write(args, tmp_path, tmp_path, ["one", "two", "three"], "operator")
    weights = [limits.weight for limits in read_api_keys(tmp_path / "keys").values()]
    assert weights == [1.0, 3.0, 1.0]
    [application] = yaml.safe_load(config.read_text())["applications"]
    assert application["args"]["deadlines"] == {"queue_s": 7.0}
    assert application["args"]["max_num_seqs"] == 16


def test_prompts_are_counted_once_whether_computed_or_cached() -> None:
    text = (
        "# TYPE pagoda_prompt_tokens_total counter\n"
        'pagoda_prompt_tokens_total{model_name="m",replica="a",source="computed"} 640.0\n'
        'pagoda_prompt_tokens_total{model_name="m",replica="a",source="cached"} 64.0\n'
        'pagoda_generated_tokens_total{model_name="m"} 7.0\n'
    )
    assert sum(map(float, command._COMPUTED.findall(text))) == 704
