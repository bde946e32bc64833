import json
import shutil
from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.paper.figures_command import FOLDER


def test_an_unknown_figure_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["figures", "--figure", "12a,99"])
    assert "no figure 99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "words", "has_outside"),
    [
        # as those below are, in ten times as long
        pytest.param("", [], True, marks=pytest.mark.slow),
        ("engine/opt-13b_cuda", ["--engine"], True),
        pytest.param(
            "engine/tiny_cpu",
            ["--engine", "--model", "tiny", "--device", "cpu"],
            True,
            # rendered as those above are
            marks=pytest.mark.slow,
        ),
        # of one figure only: nothing is said about rates
        (
            "engine/opt-66b_cuda_tp2",
            ["--engine", "--model", "opt-66b", "--tensor-parallel", "2"],
            False,
        ),
    ],
)
def test_the_kept_results_are_rendered_as_they_are_kept(
    folder: str, words: list[str], has_outside: bool, tmp_path: Path
) -> None:
    target = tmp_path / folder
    target.mkdir(parents=True, exist_ok=True)
    name = "engine" if words else "figures"
    kept = [FOLDER / folder / f"{name}.json"]
    # the batches over time of runs whose steps were not kept
    kept += (FOLDER / folder).glob("engine_batches.svg")
    for path in kept:
        shutil.copy(path, target)
    # whether numbers are outside of their bands
    assert main(["figures", "--render", *words, "--output", str(tmp_path)]) == has_outside
    text = (target / f"{name}.md").read_text()
    assert text == (FOLDER / folder / f"{name}.md").read_text()
    drawings = {path.name for path in target.glob("*.svg")}
    assert drawings == {path.name for path in (FOLDER / folder).glob("*.svg")}


def test_a_file_that_is_no_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "figures.json").write_text(json.dumps({"checks": []}))
    with pytest.raises(SystemExit):
        main(["figures", "--render", "--output", str(tmp_path)])
    assert "is no report of figures" in capsys.readouterr().err
