import os
import stat
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.command.start.server_folder import (
    KEPT,
    RunningServer,
    ServerFolder,
    all_folders,
    make_folder,
    running_folders,
)
from engine.errors import ConfigError

OWN = RunningServer(
    pid=os.getpid(),
    created_s=psutil.Process().create_time(),
    url="http://127.0.0.1:1",
    model="m",
    config="/c.yaml",
)


def folder(parent: Path, name: str) -> ServerFolder:
    path = parent / name
    path.mkdir(parents=True)
    return ServerFolder(path)


def test_a_server_is_found_for_as_long_as_its_process_runs(tmp_path: Path) -> None:
    first, second = folder(tmp_path, "1"), folder(tmp_path, "2")
    first.write_state(OWN)
    # another process has got the number since
    second.write_state(replace(OWN, created_s=OWN.created_s - 1))
    assert [state for _, state in running_folders(tmp_path)] == [OWN]
    (first.path / "server.json").write_text("{")
    assert running_folders(tmp_path) == []


def test_only_this_user_may_read_folder_and_key(tmp_path: Path) -> None:
    made = make_folder(tmp_path)
    key = made.write_key()
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_text().strip()) > 30


def test_the_oldest_folders_of_ended_servers_are_deleted(tmp_path: Path) -> None:
    for index in range(KEPT + 3):
        folder(tmp_path, f"{index:02}")
    running = folder(tmp_path, "00-runs")
    running.write_state(OWN)
    made = make_folder(tmp_path)
    left = [each.path.name for each in all_folders(tmp_path)]
    assert len(left) == KEPT + 2
    assert running.path.name in left
    assert made.path.name in left
    assert "00" not in left


def test_a_folder_without_a_server_is_not_kept(tmp_path: Path) -> None:
    unused, used = folder(tmp_path, "1"), folder(tmp_path, "2")
    used.write_state(OWN)
    for each in (unused, used):
        each.discard_unused()
    assert [each.path for each in all_folders(tmp_path)] == [used.path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        make_folder(tmp_path / "file")
