"""A miniature of every figure on the engine itself, on a CPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.figures.definitions import Cell, Result
from load_tests.figures.live.catalogue import EXTENTS, LOADS, SHAREGPT, Load, catalogue
from load_tests.figures.live.runs import Run, RunStep, read_run, write_run
from load_tests.figures.live.validation import Pair, batches, step_errors, validate
from load_tests.simulator.step_tables import read_table
from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import TimedRequest

FIGURES = {"2", "12", "13", "14", "16", "18"}
PAIRS = {"sharegpt": "20,30\n7,12\n60,9\n", "alpaca": "12,10\n19,6\n", "translation": "9,7\n"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a run of everything that takes seconds, and that is done."""
    folder = tmp_path_factory.mktemp("engine")
    words = ["figures", "--engine", "--miniature", "--model", "tiny", "--device", "cpu"]
    for name, rows in PAIRS.items():
        (folder / f"{name}.csv").write_text(f"input_len,output_len\n{rows}")
        words += [f"--{name}", str(folder / f"{name}.csv")]
    words += ["--processes", "1", "--output", str(folder)]
    # whether numbers are inside of their bands depends on what else the machine does
    assert main(words) in (0, 1)
    return words


def _folder(words: list[str]) -> Path:
    return Path(words[-1]) / "engine" / "tiny_cpu"


def test_a_miniature_of_every_figure_runs_on_the_engine_and_is_reported(words: list[str]) -> None:
    folder = _folder(words)
    document = json.loads((folder / "engine.json").read_text())
    rates = {
        Load(**{name: value for name, value in row.items() if name != "rate_per_s"}): row[
            "rate_per_s"
        ]
        for row in document["saturating_rates"]
    }
    assert rates.keys() == set(LOADS)
    panels = catalogue(EXTENTS["miniature"], rates)
    assert {panel.figure for panel in panels} == FIGURES
    assert document["panels"].keys() == {panel.name for panel in panels}
    for curves in document["panels"].values():
        for points in curves.values():
            for point in points:
                assert point["engine"]["num_steps"] > 0
                assert point["simulated"]["num_steps"] > 0
    assert {row["panel"] for row in document["checks"]} >= {"2", "13a", "14b", "16b", "18b", "19a"}
    text = (folder / "engine.md").read_text()
    for figure in (*FIGURES, "19"):
        assert f"engine_figure_{figure}.svg" in text
        assert (folder / f"engine_figure_{figure}.svg").read_text().startswith("<?xml")
    assert "| cell | step, % p50 |" in text
    assert "| TTFT p50, ms |" in text


def test_what_has_run_is_not_run_again(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = sorted((_folder(words) / "cells").glob("engine_*.json.gz"))
    lost, kept = cells[0], {path: path.stat().st_mtime_ns for path in cells[1:]}
    before = read_run(lost)
    lost.unlink()
    capsys.readouterr()
    main(words)
    progress = [line for line in capsys.readouterr().out.splitlines() if "engine," in line]
    assert len(progress) == 1
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    after = read_run(lost)
    assert before is not None
    assert after is not None
    assert after.cell == before.cell
    assert [s.request for s in after.requests] == [s.request for s in before.requests]


def test_an_unknown_figure_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--figure", "17"])
    assert "no figure 17 on the engine" in capsys.readouterr().err


def _run(step_s: float) -> Run:
    cell = Cell(rate_per_s=2.0, duration_s=10.0, window_from_s=2.0)
    steps = tuple(
        RunStep(end_s=step_s * (i + 1), step_s=step_s, num_sequences=2 + i % 2, num_decodes=2)
        for i in range(int(10 / step_s))
    )
    request = TimedRequest(due_s=0.5, input_len=4, output_len=5)
    result = Result(**dict.fromkeys(Result.__dataclass_fields__, 0))
    served = Served(request=request, first_token_s=1.0, finish_s=3.0)
    return Run(cell=cell, requests=(served,), steps=steps, result=result, machine={})


class _Second:
    def seconds(self, work: object) -> float:
        return 1.0


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = _run(1.0)
    write_run(tmp_path / "cells" / "run.json.gz", run)
    assert read_run(tmp_path / "cells" / "run.json.gz") == run
    assert read_run(tmp_path / "other.json.gz") is None


def test_tokens_in_the_window_tell_the_rate() -> None:
    # steps that end at 2, ..., 9 s: four of two and four of three sequences
    assert _run(1.0).sustained_per_s == pytest.approx((4 * 2 + 4 * 3) / 8 / 5)


def test_a_step_that_is_launched_counts_with_the_one_before() -> None:
    run = _run(1.0)
    first, second, third = (
        replace(step, step_s=seconds, num_prompt_tokens=num_tokens)
        for step, seconds, num_tokens in zip(run.steps, (1.0, 1.9, 0.1), (0, 8, 9), strict=False)
    )
    run = replace(run, steps=(first, second, third))
    assert step_errors(Pair(run, run, _Second())) == pytest.approx([0.0, 100 * 0.9 / 1.9, 900.0])
    assert step_errors(Pair(run, run, _Second(), 9)) == [0.0] * 3


def test_differences_are_told_in_percent_of_the_engine() -> None:
    assert step_errors(Pair(_run(1.0), _run(1.0), _Second())) == [0.0] * 10
    assert step_errors(Pair(_run(0.5), _run(0.5), _Second())) == [100.0] * 20
    rows = {row.quantity: row for row in validate([Pair(_run(1.0), _run(0.5), _Second())])}
    rate = rows["rate sustained, req/s"]
    assert rate.percent == pytest.approx(100.0)
    assert rate.verdict == "outside"
    assert rows["sequences in the batch"].verdict == "inside"
    assert rows["the same over time, mean distance"].verdict == ""
    assert batches(_run(1.0), 0.0, 10.0) == [0.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0]


def test_rates_follow_what_the_card_sustains() -> None:
    rates = dict.fromkeys(LOADS, 1.0) | {SHAREGPT: 7.0}
    (panel,) = (p for p in catalogue(EXTENTS["quick"], rates) if p.name == "2")
    assert {cell.rate_per_s for cell in panel.cells} == {14.0}


def test_the_step_times_of_the_run_are_kept(words: list[str]) -> None:
    table = read_table(_folder(words) / "steps_beams.json")
    assert (table.beam_width, table.mixed is not None) == (4, True)
    # beside a prefix that all share
    assert 0 <= read_table(_folder(words) / "steps_plain.json").shared_cost <= 1
