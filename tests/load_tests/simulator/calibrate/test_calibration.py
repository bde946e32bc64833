from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.simulator.calibrate import calibration
from load_tests.simulator.step_tables import FOLDER, StepTable, read_table
from load_tests.simulator.step_time import StepWork
from tests.engine.model.tiny import save_tiny

AXES = [
    "--mixed-batches",
    "3",
    "--batches",
    "1,3",
    "--contexts",
    "20,40",
    "--prompt-lens",
    "4,48",
    "--repeats",
    "5",
]


def test_every_point_is_measured_and_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would start this process again
    monkeypatch.setattr(calibration, "with_one_thread", lambda: None)
    save_tiny("tied_llama3", tmp_path / "model")
    path = tmp_path / "tables" / "cpu.json"
    words = ["--model", str(tmp_path / "model"), "--dtype", "float32", "--table", str(path)]
    assert main(["calibrate", *words, *AXES]) == 0
    table = read_table(path)
    assert (table.batches, table.contexts, table.prompt_lens) == ((1, 3), (20, 40), (4, 48))
    assert all(seconds > 0 for row in (*table.decode_s, table.prefill_s) for seconds in row)
    assert table.machine["cores"]
    assert table.mixed is not None
    assert [len(row) for row in table.mixed.added_s] == [2]
    assert table.shared_cost == 1.0
    assert table.step_time().seconds(StepWork.alike(2, 30)) > 0


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_tables_name_their_machine_and_commit(path: Path) -> None:
    table: StepTable = read_table(path)
    assert table.machine["commit"]
    assert table.machine.get("cards") or table.machine["cpu"]


def test_an_axis_that_falls_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(calibration, "with_one_thread", lambda: None)
    words = ["--model", str(tmp_path), "--table", str(tmp_path / "t.json"), "--batches", "4,2"]
    with pytest.raises(SystemExit):
        main(["calibrate", *words])
    assert "--batches must increase" in capsys.readouterr().err


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"model": "x"}')
    with pytest.raises(ValueError, match="no table of step times"):
        read_table(path)
