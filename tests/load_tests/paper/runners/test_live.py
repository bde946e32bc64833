"""A miniature of every figure on the engine itself, on a CPU."""

import json
from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.paper.experiments.live_catalogue import LOADS, Load, live_catalogue
from load_tests.paper.experiments.scales import SCALES
from load_tests.paper.runners.engine_bench import EngineUnderTest
from load_tests.paper.runners.stored_runs import read_run
from load_tests.simulator.step_tables import read_table

FIGURES = {"2", "12", "13", "14", "16", "18"}
PAIRS = {"sharegpt": "20,30\n7,12\n60,9\n", "alpaca": "12,10\n19,6\n", "translation": "9,7\n"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a run of two figures, and that is done."""
    # plain requests and several of a kind
    return run_of(tmp_path_factory, "--figure", "14,18")


def run_of(tmp_path_factory: pytest.TempPathFactory, *further: str) -> list[str]:
    """Options of a run that takes seconds, and that is done."""
    folder = tmp_path_factory.mktemp("engine")
    words = ["figures", "--engine", "--miniature", "--model", "tiny", "--device", "cpu"]
    for name, rows in PAIRS.items():
        (folder / f"{name}.csv").write_text(f"input_len,output_len\n{rows}")
        words += [f"--{name}", str(folder / f"{name}.csv")]
    words += [*further, "--processes", "1", "--output", str(folder)]
    # whether numbers are inside of their bands depends on what else the machine does
    assert main(words) in (0, 1)
    return words


def _folder(words: list[str]) -> Path:
    return Path(words[-1]) / "engine" / "tiny_cpu"


@pytest.mark.slow
def test_a_miniature_of_every_figure_runs_on_the_engine_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = _folder(run_of(tmp_path_factory))
    document = json.loads((folder / "engine.json").read_text())
    rates = {
        Load(**{name: value for name, value in row.items() if name != "rate_per_s"}): row[
            "rate_per_s"
        ]
        for row in document["saturating_rates"]
    }
    assert rates.keys() == set(LOADS)
    panels = live_catalogue(SCALES["miniature"].live, rates)
    assert {panel.figure for panel in panels} == FIGURES
    assert document["panels"].keys() == {panel.name for panel in panels}
    for panel in document["panels"].values():
        for points in panel["curves"].values():
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
    lost = next(path for path in cells if read_run(path).cell.beam_width)
    kept = {path: path.stat().st_mtime_ns for path in cells if path != lost}
    before = read_run(lost)
    lost.unlink()
    capsys.readouterr()
    main(words)
    progress = [line for line in capsys.readouterr().out.splitlines() if "engine," in line]
    assert len(progress) == 1
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    after = read_run(lost)
    assert after.cell == before.cell
    assert [s.request for s in after.requests] == [s.request for s in before.requests]


def test_an_unknown_figure_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--figure", "17"])
    assert "no figure 17" in capsys.readouterr().err


def test_the_step_times_of_the_run_are_kept(words: list[str]) -> None:
    table = read_table(_folder(words) / "steps_beams.json")
    assert (table.beam_width, table.mixed is not None) == (4, True)
    # beside a prefix that all share
    assert 0 <= read_table(_folder(words) / "steps_plain.json").shared_cost <= 1


def test_of_sharegpt_s_requests_only_small_batches_are_calibrated() -> None:
    engine = EngineUnderTest(
        Path("opt-66b"), "cuda", is_coarse=False, tensor_parallel=2, has_few_rows=True
    )
    assert engine.points.keys() == {"plain"}
    points = engine.points["plain"]
    assert engine.max_num_seqs == 64 == max(points.batches) == max(points.sizes)
    assert max(points.mixed_batches) == points.padded_batch <= 64
    assert points.padded_len in points.prompt_lens
    assert points.shared_len == 0
