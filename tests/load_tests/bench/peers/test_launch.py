from pathlib import Path

import pytest

from load_tests.bench.in_process.row_kinds import write_tokenizer
from load_tests.bench.peers.launch import MODULES, take_turn, telling
from load_tests.model_folders import model_folder
from tests.load_tests.bench.peers.settings import MEASURES, knobs


# our system is measured in test_pagoda, too, and a fake one in test_system, which are not slow
@pytest.mark.slow
def test_our_system_takes_every_measure(tmp_path: Path) -> None:
    folder = model_folder("tiny", tmp_path)
    write_tokenizer(folder, 32000)
    turn = take_turn("pagoda", knobs(folder), MEASURES)
    assert turn.errors == ()
    assert turn.facts["kv_blocks"] == 256
    assert [bool(figures) for figures in turn.figures] == [True] * len(MEASURES)


def test_a_system_that_fails_says_why_and_loses_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODULES, "broken", "load_tests.bench.peers.no_such_module")
    offline, *_, online = MEASURES
    log = tmp_path / "broken.log"
    turn = take_turn("broken", knobs(tmp_path), [offline, online], log)
    assert turn.figures == ({}, {})
    assert all("No module named" in error for error in turn.errors)
    assert all(str(log) in error for error in turn.errors)
    assert log.read_text().count("No module named") == 2


def test_the_first_failure_is_shown_however_far_above_the_end_it_is() -> None:
    core = "(Core pid=7) ERROR 11-30 11:31:02 [core.py:9] "
    printed = [
        "INFO starting",
        *(core + line for line in ("failed to start.", "Traceback (most recent call last):")),
        *(f"{core}  File {number}" for number in range(40)),
        core + "ValueError: no such backend",
        *(f"at the end {number}" for number in range(30)),
    ]
    shown = telling(printed)
    assert shown[:2] == printed[1:3]
    assert core + "ValueError: no such backend" in shown
    assert shown[-30:] == printed[-30:]
    assert len(shown) < 45
    assert telling(printed[-3:]) == printed[-3:]
