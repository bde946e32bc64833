from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.paper.experiments.cells import Cell
from load_tests.paper.runners.stored_runs import CellRun, paths_of, read_run, run_missing, write_run
from tests.load_tests.paper.runners.example_run import example_run

CELL = Cell(rate_per_s=2.0, duration_s=10.0)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = example_run(1.0)
    write_run(tmp_path / "cells" / "run.json.gz", run)
    assert read_run(tmp_path / "cells" / "run.json.gz") == run
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path / "other.json.gz")


def test_only_missing_cells_are_run(tmp_path: Path) -> None:
    def work(cell: Cell) -> CellRun:
        ran.append(cell)
        return replace(example_run(1.0), cell=cell)

    ran: list[Cell] = []
    cells = [CELL, replace(CELL, seed=1), CELL]
    paths = paths_of(cells, tmp_path / "cells" / "one", {}, lambda cell: "")
    assert list(run_missing(paths, work, "engine", 1)) == ran == cells[:2]
    paths[cells[0]].unlink()
    assert list(run_missing(paths, work, "engine", 1)) == cells[:2]
    assert ran == [*cells[:2], cells[0]]


def test_a_cell_is_named_by_its_definition_the_context_and_the_lengths(tmp_path: Path) -> None:
    def path(cell: Cell, context: str, files: dict[str, str]) -> Path:
        return paths_of([cell], tmp_path / "one", files, lambda cell: context)[cell]

    (tmp_path / "pairs.csv").write_text("input_len,output_len\n10,7\n")
    files = {"sharegpt": str(tmp_path / "pairs.csv")}
    names = [
        path(CELL, "", {}),
        path(replace(CELL, seed=1), "", {}),
        path(CELL, "program", {}),
        path(CELL, "", files),
    ]
    assert len(set(names)) == 4
    assert path(CELL, "", {}) == names[0]
