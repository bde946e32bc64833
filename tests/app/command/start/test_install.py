from pathlib import Path

import pytest

from app.command.start import install
from app.command.start.install import uv_flags


def test_uv_gets_what_pip_is_told() -> None:
    settings = {"find-links": "/wheels", "extra-index-url": "file:///a file:///b", "cert": "/c"}
    assert uv_flags(settings) == [
        "--color",
        "never",
        "--find-links",
        "/wheels",
        "--extra-index-url",
        "file:///a",
        "--extra-index-url",
        "file:///b",
        "--index-strategy",
        "unsafe-best-match",
        "--system-certs",
    ]
    assert uv_flags({}) == ["--color", "never"]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_one_line_says_what_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uv = script(tmp_path / "uv", 'echo "Resolved 106 packages in 3s"; echo " + torch==2"')
    monkeypatch.setattr(install, "_find_uv", lambda: uv)
    assert install.main([]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("packages: 106 installed by uv in ")


def test_where_uv_fails_pip_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = script(tmp_path / "python", f'echo "$@" >> {tmp_path}/asked')
    monkeypatch.setattr("sys.executable", python)
    monkeypatch.setattr(install, "_find_uv", lambda: script(tmp_path / "uv", "echo no >&2; exit 1"))
    assert install.main(["[dev]"]) == 0
    out, err = capsys.readouterr()
    assert "uv could not install:\nno\n" in err
    assert "installed by pip" in out
    asked = (tmp_path / "asked").read_text().splitlines()[-1]
    assert asked.startswith("-m pip install -q ")
    assert asked.endswith("-c constraints.txt -e .[dev]")
