import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from load_tests.faults import server
from load_tests.free_port import free_port
from load_tests.path.application import build
from load_tests.path.command import (
    PathFigures,
    add_arguments,
    borders_of,
    cases_of,
    row_of,
    write_options,
)
from tests.app.models.checkpoints import write_model
from tests.app.text.tokenizers import byte_level_backend
from tests.load_tests import own_process


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "embedded"
    write_model(source, vocab_size=700, bos_token_id=1, eos_token_id=2)
    byte_level_backend().save(str(source / "tokenizer.json"))
    monkeypatch.setattr(server, "embedded_model", lambda: source)


def test_what_is_served_is_the_application_over_workers_without_a_model(
    embedded: None, tmp_path: Path
) -> None:
    args = parsed("--streams", "3,100", "--ingresses", "2", "--set", "block_size=32")
    written = yaml.safe_load(write_options(args, tmp_path).read_text())
    [application] = written["applications"]
    assert application["import_path"] == "load_tests.path.application:build"
    numbers = {each["name"]: each["num_replicas"] for each in application["deployments"]}
    assert numbers == {"Ingress": 2, "Engine": 1}
    assert application["args"]["max_num_seqs"] == 100
    built: Any = build(application["args"])
    engine = built._bound_deployment.init_args[0]
    config, gang, *_ = engine._bound_deployment.init_args
    assert gang.worker_factory == "load_tests.path.paced_worker:load_worker"
    assert config.block_size == 32


def test_rates_come_before_streams() -> None:
    cases = cases_of(
        parsed("--rate", "5", "--duration-s", "2", "--streams", "4", "--turnover", "2")
    )
    assert [case.label for case in cases] == ["5 req/s", "4 streams"]
    assert [case.concurrency for case in cases] == [None, 4]
    assert len(cases[1].schedule) == 8


def test_a_row_has_all_of_the_cpu_time() -> None:
    cpu_ms = {"scheduler": 1.0, "replica Ingress": 4.0, "proxy": 2.0, "gcs": 0.5, "raylet": 0.25}
    one = PathFigures(
        case="4 streams",
        cpu_ms=cpu_ms,
        client_cpu_ms=9.0,
        tokens_per_s=1234.0,
        chunk_tokens=1.5,
        ttft_ms=(3.0, 30.0),
        gap_ms=(10.0, 20.0),
        inwards_ms=(1.0, 2.0),
        first_ms=(0.5, 4.0),
        outwards_ms=(0.25, 8.0),
        num_failed=0,
    )
    assert row_of(one) == (
        "4 streams", "1.0", "0.0", "4.0", "2.0", "0.8", "7.8", "9.0", "1,234.0", "1.50", "3 / 30",
        "10 / 20",
    )  # fmt: skip

    assert borders_of(one) == ("4 streams", "1.0 / 2.0", "0.5 / 4.0", "0.2 / 8.0")


@pytest.mark.ray
@pytest.mark.slow
def test_a_server_without_a_model_is_measured(tmp_path: Path) -> None:
    words = ["path", "--streams", "4", "--turnover", "2", "--lengths", "fixed:8:16"]
    words += ["--idle-s", "1", "--port", str(free_port()), "--output", str(tmp_path)]
    done = own_process.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = tmp_path.glob("path_*.json")
    figures = json.loads(file.read_text())
    assert figures["idle_percent"]
    [case] = figures["cases"]
    assert case["num_failed"] == 0
    assert case["cpu_ms"]["replica Ingress"] > 0
    assert all(case[f"{name}_ms"][1] > 0 for name in ("inwards", "first", "outwards"))
