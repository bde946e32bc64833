from pathlib import Path

import pytest

from load_tests.bench.in_process.row_kinds import write_tokenizer
from load_tests.bench.peers.launch import MODULES, take_turn
from load_tests.model_folders import model_folder
from tests.load_tests.bench.peers.settings import MEASURES, knobs


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
    turn = take_turn("broken", knobs(tmp_path), [offline, online])
    assert turn.figures == ({}, {})
    assert all("No module named" in error for error in turn.errors)
