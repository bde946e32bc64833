import json
import sys
from pathlib import Path

import pytest

from load_tests import machine
from load_tests.report import LOG_WIDTH, Report, command_line


def test_the_log_gets_one_row_per_run(tmp_path: Path) -> None:
    files = Report(tmp_path, "x_1")
    files.write({"value": 1})
    files.log("1 | 2 tok/s")
    files.log("3 tok/s")
    rows = [line for line in (tmp_path / "LOG.md").read_text().splitlines() if "x_1.json" in line]
    assert len(rows) == 2
    assert all(row.count("|") == 7 for row in rows)
    assert json.loads((tmp_path / "x_1.json").read_text())["value"] == 1


def test_a_row_of_the_log_is_short_whatever_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "http", "--rate", ",".join(["12.5"] * 40), "--log"])
    monkeypatch.setattr(machine, "name", lambda: "NVIDIA H200")
    Report(tmp_path, "http_20261129_080326").log(", ".join(["12.5 req/s"] * 40))
    row = (tmp_path / "LOG.md").read_text().splitlines()[-1]
    assert len(row) <= LOG_WIDTH
    assert "| NVIDIA H200 | `http --rate 12.5," in row
    assert "...` | 12.5 req/s, " in row
    assert row.endswith("... | http_20261129_080326.json |")


def test_figures_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Report(tmp_path, "x").write({"value": float("nan")})


@pytest.mark.parametrize("key", [["--api-key", "secret"], ["--api-key=secret"]])
def test_keys_and_folders_stay_out_of_the_command_line(
    key: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["http", "--rate", "1,2", *key, "--log", "--output", "/somewhere"]
    monkeypatch.setattr(sys, "argv", ["x", *words])
    assert command_line() == "python -m load_tests http --rate 1,2"
