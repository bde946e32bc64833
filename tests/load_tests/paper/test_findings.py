from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.paper.experiments.cells import Cell, CellResult
from load_tests.paper.experiments.opt_models import MODELS, figure_19a
from load_tests.paper.experiments.panels import Panel
from load_tests.paper.findings import (
    BatchOverTime,
    Deviation,
    Findings,
    read_findings,
    write_findings,
)

CELL = Cell(rate_per_s=2.0, duration_s=9.0)
RESULT = replace(CellResult(**dict.fromkeys(CellResult.__dataclass_fields__, 0)), filled=40.0)
CELLS = (CELL, replace(CELL, seed=1))
FINDINGS = Findings(
    runners=("engine", "simulated"),
    panels={"2": Panel("2", "title", "filled", {"paged": tuple((2.0, cell) for cell in CELLS)})},
    results={
        CELLS[0]: (RESULT, RESULT),
        CELLS[1]: (replace(RESULT, filled=50.0), replace(RESULT, filled=60.0)),
    },
    table_1=tuple(MODELS.values()),
    recoveries=figure_19a(),
    deviations=(Deviation(cell="cell", quantity="quantity", percent=-6.0, most_percent=5.0),),
    batches=(BatchOverTime(cell="cell", end_s=9.0, engine=[1.0, 2.0], simulated=[3.0, 4.0]),),
    facts={"scale": "quick", "num_blocks": 981},
    commits=dict.fromkeys(CELLS, "abc"),
)


def test_findings_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_findings(tmp_path / "engine.json", FINDINGS, [])
    assert read_findings(tmp_path / "engine.json") == FINDINGS


def test_cells_with_the_same_x_are_averaged() -> None:
    assert FINDINGS.points("2", "paged") == [(2.0, 45.0)]
    assert FINDINGS.points("2", "paged", 1) == [(2.0, 50.0)]
    assert FINDINGS.means("2", "paged", "filled") == pytest.approx([45.0, 50.0])


def test_a_promise_is_kept_up_to_its_percent() -> None:
    (outside,) = FINDINGS.deviations
    assert outside.verdict == "outside"
    assert replace(outside, percent=-5.0).verdict == "inside"
    assert replace(outside, most_percent=None).verdict == ""
