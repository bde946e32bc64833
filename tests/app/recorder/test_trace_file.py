import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from app.recorder.trace_file import NUM_FILES, TraceFile, check_folder
from engine.errors import ConfigError


def make_line(number: int) -> Any:
    return lambda num_lost: json.dumps([number, num_lost]).encode()


def read(folder: Path) -> list[list[int]]:
    """All lines, in the order of the files' names."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def test_lines_come_in_order(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "a" / "b", 1 << 20)
    for number in range(100):
        file.put(make_line(number))
    file.close()
    assert read(tmp_path / "a" / "b") == [[number, 0] for number in range(100)]
    assert file.num_lost == 0


def test_no_other_user_reads_a_file(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, 1 << 20)
    file.put(make_line(0))
    file.close()
    [path] = tmp_path.glob("*.jsonl")
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_never_take_more_than_they_may_and_the_oldest_goes_first(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, 400)
    for number in range(10, 99):
        file.put(make_line(number))
    file.close()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == NUM_FILES
    # lines of 8 bytes in files of 100
    assert [path.stat().st_size for path in paths] == [96, 96, 96, 40]
    assert read(tmp_path) == [[number, 0] for number in range(58, 99)]


def test_what_comes_too_fast_is_lost_and_counted(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, 1 << 20, max_waiting=2)
    entered, gate = threading.Event(), threading.Event()

    def slow_line(num_lost: int) -> bytes:
        entered.set()
        gate.wait()
        return b"[0, 0]"

    file.put(slow_line)
    entered.wait()
    for number in range(1, 6):
        file.put(make_line(number))
    gate.set()
    file.close()
    assert read(tmp_path) == [[0, 0], [1, 3], [2, 0]]
    assert file.num_lost == 3


def test_what_cannot_be_written_is_lost_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    # a file for every line of 8 bytes
    file = TraceFile(folder, NUM_FILES * 8)

    def without_folder(num_lost: int) -> bytes:
        shutil.rmtree(folder)
        return b"[11, 0]"

    def with_folder(num_lost: int) -> bytes:
        folder.mkdir()
        return b"[13, %d]" % num_lost

    for line in (make_line(10), without_folder, make_line(12), with_folder, make_line(14)):
        file.put(line)
    file.close()
    assert read(folder) == [[13, 2], [14, 0]]
    assert file.num_lost == 2


def test_a_folder_that_is_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="cannot be written to by this user"):
        check_folder(tmp_path)
