import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.runtime.replica.scratch_folder import ScratchFolder

KILLED = """
import os, signal
from engine.runtime.replica.scratch_folder import ScratchFolder
print(ScratchFolder().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_is_private_and_goes_with_what_is_in_it(tmp: Path) -> None:
    folder = ScratchFolder()
    assert folder.path.parent == tmp
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "socket").touch()
    folder.close()
    folder.close()
    assert not list(tmp.iterdir())


def test_what_a_killed_owner_left_is_removed_and_nothing_else(tmp: Path) -> None:
    mine = ScratchFolder()
    foreign = tmp / "pagoda-notes"
    foreign.mkdir()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    orphan = Path(killed.stdout.strip())
    assert orphan.exists()
    other = ScratchFolder()
    assert not orphan.exists()
    assert mine.path.exists()
    assert foreign.exists()
    mine.close()
    other.close()
