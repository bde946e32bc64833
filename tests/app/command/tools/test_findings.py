import resource
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterable
from pathlib import Path

import pytest

from app.command.tools.findings import Finding, environment, gpus, machine, of_config, worst
from app.settings.config import parse_config

Usage = namedtuple("Usage", "total used free")


def bad(found: Iterable[Finding]) -> dict[str, str]:
    """Colours of what is not green, each with a way to repair it."""
    listed = list(found)
    assert all(bool(each.fix) == (each.colour != "green") for each in listed)
    return {each.id: each.colour for each in listed if each.colour != "green"}


def test_this_machine_has_no_red_finding(tmp_path: Path) -> None:
    assert "red" not in bad(machine(tmp_path)).values()


def test_faults_of_a_machine_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 1 << 20))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert bad(machine(tmp_path)) == {
        "python": "red",
        "gcc": "yellow",
        "nofile": "yellow",
        "shm": "yellow",
        "disk": "red",
        "cache": "red",
    }


def test_variables_that_harm_are_named() -> None:
    variables = {"HTTP_PROXY": "http://p", "OMP_NUM_THREADS": "8", "RAY_AUTH_MODE": "disabled"}
    assert bad(environment(variables)).keys() == {"proxy", "threads", "ray_auth"}
    assert not bad(environment({"http_proxy": "http://p", "no_proxy": "localhost"}))
    assert not bad(environment({}))


def test_options_that_do_not_suit_the_machine_are_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k")
    keys.chmod(0o644)
    config = parse_config({"num_threads": 512, "operator_keys_file": str(keys)})
    assert bad(of_config(config, "0.0.0.0")).keys() == {
        "num_threads",
        "open_to_all",
        "operator_keys_file",
    }
    keys.chmod(0o600)
    assert not bad(of_config(parse_config({"api_keys_file": str(keys)}), "0.0.0.0"))
    keys.unlink()
    assert bad(of_config(parse_config({"api_keys_file": str(keys)}), "127.0.0.1")) == {
        "api_keys_file": "red"
    }


def test_gpus_that_are_asked_for_and_not_there_are_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    assert bad(gpus()) == {}
    assert bad(gpus(2)) == {"gpu": "red"}
    [finding] = gpus(2)
    assert finding.text == "2 GPU are asked for, 0 found"


def test_gpus_without_a_driver_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([self]))
    monkeypatch.setenv("PATH", "")
    assert bad(gpus()) == {"gpu": "red"}


def test_red_is_worse_than_yellow() -> None:
    green, yellow, red = (Finding(id="x", colour=c, text="") for c in ("green", "yellow", "red"))
    assert [worst(each) for each in ([], [green], [yellow, green], [yellow, red])] == [
        "green",
        "green",
        "yellow",
        "red",
    ]
