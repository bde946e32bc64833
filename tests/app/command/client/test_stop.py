import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.command.__main__ import main
from app.command.client.connection import NOT_READY, NoServer
from app.command.client.stop import choose
from app.command.start.server_folder import RunningServer, make_folder


def state(pid: int) -> RunningServer:
    created_s = psutil.Process(pid).create_time()
    return RunningServer(pid=pid, created_s=created_s, url="u", model="m", config="c")


def test_a_server_is_asked_to_end_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["stop"]) == NOT_READY
    with subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) as process:
        make_folder().write_state(state(process.pid))
        assert main(["stop"]) == 0
        assert not psutil.pid_exists(process.pid)
    assert f"stopping u (process {process.pid})" in capsys.readouterr().out


def test_it_must_be_clear_which_server() -> None:
    one = state(psutil.Process().pid)
    other = state(psutil.Process().ppid())
    with pytest.raises(NoServer, match="2 servers run; give the process of one, or --all"):
        choose([one, other], None, all=False)
    assert choose([one, other], None, all=True) == [one, other]
    assert choose([one, other], one.pid, all=False) == [one]
    with pytest.raises(NoServer, match="process 1 is none"):
        choose([one], 1, all=False)
