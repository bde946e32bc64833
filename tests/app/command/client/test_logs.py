from pathlib import Path

import pytest

from app.command.__main__ import main
from app.command.client.logs import is_wanted
from app.command.start.server_folder import make_folder

LINE = "(ServeReplica:pagoda:Engine pid=1) {} 2026-11-29 22:44:13,978 a b -- gang_lost open=1\n"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = make_folder().log
    path.write_text("Ray\n" + LINE.format("INFO") + LINE.format("ERROR"))
    return path


def test_the_end_of_the_latest_log_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "-n", "2", "--follow"]) == 0
    assert capsys.readouterr().out == LINE.format("INFO") + LINE.format("ERROR")
    assert main(["logs", "-n", "0", "--ours", "--level", "warning"]) == 0
    assert capsys.readouterr().out == LINE.format("ERROR")
    assert main(["logs", "--path"]) == 0
    assert capsys.readouterr().out == f"{log}\n"


def test_without_a_log_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["logs"]) == 1
    assert "no server of this user has a log" in capsys.readouterr().err


def test_lines_of_others_have_no_level() -> None:
    assert is_wanted("Ray\n", ours=False, level=None)
    assert not is_wanted("Ray\n", ours=True, level=None)
    assert not is_wanted("Ray\n", ours=False, level="debug")
