"""Searches of sustained rates, and what the workloads of today are like."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from load_tests.__main__ import main
from load_tests.traffic.latencies import Objective
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.sources import Drawn
from load_tests.whatif.modern import PRECISION, Search, sustain, systems
from load_tests.whatif.workloads import Recorded, workloads


def search(**fields: Any) -> Search:
    base = Search(
        workload="w",
        system="s",
        source=Drawn(lengths=FixedLengths(100, 10)),
        # few sequences, so that little is to be simulated
        config=replace(systems(512)["paged"], max_num_seqs=2),
        duration_s=5.0,
        objective=Objective(ttft_s=1.0, tpot_s=0.1),
        share=0.9,
        seed=0,
    )
    return replace(base, **fields)


def test_the_rate_is_the_highest_at_which_enough_requests_are_good() -> None:
    found = sustain(search())
    assert found.figures.good_share >= 0.9
    assert search().figures(found.rate_per_s * PRECISION).good_share < 0.9


def test_a_level_that_cannot_be_kept_has_no_rate() -> None:
    found = sustain(search(objective=Objective(ttft_s=1e-6)))
    assert found.rate_per_s == 0.0
    assert found.figures.good_share == 0.0


def test_a_file_replaces_what_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_len,output_len\n0,3,4\n10,5,6\n30,7,8\n")
    requests = Recorded(path).requests(2.0, 100, seed=0)
    assert [r.due_s for r in requests] == pytest.approx([0.0, 0.5, 1.5])
    by_title = {workload.title: workload for workload in workloads()}
    code = by_title["code completion (Azure 2023)"]
    assert code.source({"azure-code": path}) == Recorded(path)
    assert isinstance(code.source({}), Drawn)
    assert by_title["long conversations (Mooncake)"].source({}) is None


def test_the_command_needs_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modern", "--only", "Mooncake", "--output", str(tmp_path)]) == 1
    assert "name its trace with --mooncake" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["modern", "--only", "poetry"])
    assert "--only 'poetry' is in no title" in capsys.readouterr().err


def test_the_command_writes_rates_and_figures(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 500 * i, "input_length": 9000, "output_length": 4, "hash_ids": [1, 2, 3 + i]}
        for i in range(20)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--only", "Mooncake", "--mooncake", str(path), "--duration-s", "2"]
    assert main(["modern", *words, "--processes", "1", "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "modern.json").read_text())
    rates = {each["system"]: each["rate_per_s"] for each in found["sustained"]}
    assert rates["paged, prefix cache"] >= rates["paged"] > 0
    assert (tmp_path / "modern.svg").exists()
