from importlib import metadata

import pytest

from app.command.__main__ import main
from app.command.tools import version


def test_versions_are_those_that_are_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(version, "_PACKAGES", ("ray", "no-such-package"))
    assert main(["version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"pagoda {metadata.version('pagoda')}"
    assert lines[2:] == [f"ray {metadata.version('ray')}", "no-such-package is not installed"]
