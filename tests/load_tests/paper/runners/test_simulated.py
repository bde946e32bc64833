import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.paper.experiments.catalogue import catalogue
from load_tests.paper.experiments.scales import SCALES
from tests import ROOT

MINIATURE = SCALES["miniature"]
FIGURES = {"2", "12", "13", "14", "15", "16", "17", "18", "19"}
# as long as the datasets' prompts and shorter than their answers: a trace ends with its longest
PAIRS = {"sharegpt": "161,24\n30,40\n750,16\n", "alpaca": "12,30\n19,12\n44,20\n"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a run in miniature."""
    folder = tmp_path_factory.mktemp("lengths")
    words = ["figures", "--miniature"]
    for name, pairs in PAIRS.items():
        (folder / f"{name}.csv").write_text(f"input_len,output_len\n{pairs}")
        words += [f"--{name}", str(folder / f"{name}.csv")]
    return words


@pytest.fixture(scope="module")
def folder(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every figure in miniature."""
    folder = tmp_path_factory.mktemp("figures")
    main([*words, "--processes", "1", "--output", str(folder)])
    return folder


def test_a_miniature_of_every_figure_is_simulated_plotted_and_judged(folder: Path) -> None:
    document = json.loads((folder / "figures.json").read_text())
    panels = {panel.name: panel for panel in catalogue(MINIATURE)}
    assert document["panels"].keys() == panels.keys()
    assert {panel.figure for panel in panels.values()} == FIGURES
    for name, panel in panels.items():
        found = document["panels"][name]["curves"]
        assert {label: [p["x"] for p in points] for label, points in found.items()} == {
            label: [x for x, _ in points] for label, points in panel.curves.items()
        }
        assert all(p["simulated"]["num_steps"] > 0 for ps in found.values() for p in ps), name
    judged = {check["panel"].rstrip("abcdef") for check in document["checks"]}
    assert judged == FIGURES | {"1"}
    for figure in FIGURES:
        assert (folder / f"figure_{figure}.svg").read_text().startswith("<?xml")
    html, text = (folder / "figures.html").read_text(), (folder / "figures.md").read_text()
    assert html.count("<svg") == len(FIGURES)
    outside = {c["panel"] for c in document["checks"] if c["verdict"] == "outside"}
    named = text.partition("Outside, by panel: ")[2].partition(".\n")[0]
    assert {panel.partition(" ")[0] for panel in named.split(", ")} == outside
    assert all(f"figure_{figure}.svg" in text for figure in FIGURES)


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_any_number_of_processes(
    words: list[str], folder: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for where, processes in ((first, "1"), (second, "2")):
        some = ["--figure", "2,13,18", "--processes", processes]
        main([*words, *some, "--output", str(where)])
    assert _digests(first) == _digests(second)
    # and they are cells of the run with all figures
    cells = _digests(first / "cells")
    assert cells.items() <= _digests(folder / "cells").items()


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(words: list[str], folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "load_tests", *words]
    command += ["--figure", "12a,16", "--processes", "2", "--output", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert "simulated, " in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        # the pipe ends when the simulating processes have noticed and left, too
        process.stdout.read()
    kept = {path.name: os.stat(path) for path in (tmp_path / "cells").glob("*.json.gz")}
    assert len(kept) >= 3
    main([*words, "--figure", "12a,16", "--output", str(tmp_path)])
    for name, before in kept.items():
        assert os.stat(tmp_path / "cells" / name).st_mtime_ns == before.st_mtime_ns
    assert len(list((tmp_path / "cells").glob("*.json.gz"))) > len(kept)
    whole = _digests(folder / "cells")
    found = {n: d for n, d in _digests(tmp_path / "cells").items() if n.endswith(".json.gz")}
    assert len(found) == sum(
        len(panel.cells) for panel in catalogue(MINIATURE) if panel.name in ("12a", "16a", "16b")
    )
    assert found.items() <= whole.items()


def test_a_file_of_lengths_takes_the_place_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("input_len,output_len\n10,7\n")
    words = ["--miniature", "--figure", "13b", "--processes", "1", "--output", str(tmp_path)]
    main(["figures", *words, "--alpaca", str(tmp_path / "pairs.csv")])
    first = json.loads((tmp_path / "figures.json").read_text())["panels"]["13b"]
    main(["figures", *words])
    second = json.loads((tmp_path / "figures.json").read_text())["panels"]["13b"]
    assert first != second
    assert len(list((tmp_path / "cells").glob("*.json.gz"))) == 16
