import json
import socket
from pathlib import Path

import pytest
import yaml

from app.command.__main__ import main
from load_tests.free_port import free_port
from tests import ROOT
from tests.app.models.checkpoints import write_model


def write(folder: Path, port: int, **args: object) -> str:
    content = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    content["http_options"]["port"] = port
    content["applications"][0]["args"] |= {"device": "cpu", "kv_cache_gib": 0.01, **args}
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def colours(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    main(["doctor", "--json", *words])
    return {each["id"]: each["colour"] for each in json.loads(capsys.readouterr().out)}


def test_a_good_configuration_has_nothing_red(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, free_port(), model=str(write_model(tmp_path / "m")))
    found = colours(capsys, path)
    assert "red" not in found.values()
    assert {"config", "ports", "model"} <= found.keys()
    assert main(["doctor", path]) == 0
    assert "✓ model" in capsys.readouterr().out


def test_a_held_port_and_a_missing_model_are_red(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        path = write(tmp_path, holder.getsockname()[1], model=str(tmp_path / "no/such/model"))
        found = colours(capsys, path)
        assert (found["ports"], found["model"]) == ("red", "red")
        assert main(["doctor", path, "--no-model"]) == 1


def test_a_file_that_cannot_be_read_is_red(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert colours(capsys, write(tmp_path, 1, modle="x")) == {"config": "red"}
