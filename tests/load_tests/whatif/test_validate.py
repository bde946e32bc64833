"""The comparison of predicted and real latencies; how near they are is no test."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from load_tests.__main__ import main
from load_tests.simulator.speeds import Scaled
from load_tests.simulator.step_tables import StepTable, write_table
from load_tests.simulator.step_time import StepTime
from load_tests.whatif import validate
from load_tests.whatif.questions import resolve
from load_tests.whatif.validate import CHECKED, MAX_ERROR, Comparison, calibration
from tests.engine.model.tiny import save_tiny

TABLE = StepTable(
    model="tiny", device="cpu", dtype="float32", block_size=16, machine={}, batches=(1, 4),
    contexts=(8, 64), decode_s=((1e-3, 1e-3), (1e-3, 2e-3)), prompt_lens=(4, 32),
    prefill_s=(1e-3, 4e-3), spread=1.0,
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    save_tiny("tied_llama3", tmp_path / "model")
    args = {
        "model": str(tmp_path / "model"), "device": "cpu", "dtype": "float32", "num_blocks": 32,
        "max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64,
    }  # fmt: skip
    path = tmp_path / "serve_config.yaml"
    path.write_text(json.dumps({"applications": [{"name": "tiny", "args": args}]}))
    return path


def test_the_same_requests_are_predicted_and_served(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would start this process again
    monkeypatch.setattr(validate, "with_one_thread", lambda: None)
    paces: list[float] = []

    def scaled(step_time: StepTime, factor: float) -> Scaled:
        paces.append(factor)
        return Scaled(step_time, factor)

    monkeypatch.setattr(validate, "Scaled", scaled)
    write_table(tmp_path / "table.json", TABLE)
    words = ("--lengths", "fixed:20:6", "--requests", "6", "--loads", "0.5,2")
    files = ("--config", str(config), "--step-times", str(tmp_path / "table.json"))
    status = main(["validate", *words, *files, "--output", str(tmp_path / "out")])
    [path] = (tmp_path / "out").iterdir()
    found = json.loads(path.read_text())
    assert [load["load"] for load in found["loads"]] == [0.5, 2.0]
    low, high = found["loads"]
    # 6 prompts of 20 tokens in steps of 32, and 5 more tokens for each: 4 sequences at a time
    assert high["rate_per_s"] / low["rate_per_s"] + 1e-9 >= 4
    for load in found["loads"]:
        assert load["actual"].keys() == load["predicted"].keys() == load["rescaled"].keys()
        assert all(seconds > 0 for seconds in load["actual"].values())
        assert load["step_pace"] > 0
        assert load["step_ratios"].keys() == {"decode only", "with prompts"}
    # the batch between two loads counts for both
    assert low["probe_paces"][1] == high["probe_paces"][0] > 0
    expected = [p for x in (low, high) for p in (fmean(x["probe_paces"]), x["step_pace"])]
    assert paces == pytest.approx([1.0, *expected])
    errors = [
        load["predicted"][name] / load["actual"][name] - 1
        for load in found["loads"]
        for name in CHECKED
    ]
    assert status == int(max(map(abs, errors)) > MAX_ERROR)


def test_a_request_that_does_not_fit_is_refused(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(validate, "with_one_thread", lambda: None)
    write_table(tmp_path / "table.json", TABLE)
    words = ("--config", str(config), "--step-times", str(tmp_path / "table.json"))
    with pytest.raises(SystemExit):
        main(["validate", *words, "--lengths", "fixed:90:6", "--requests", "2"])
    assert "lower --max-total-len" in capsys.readouterr().err


def test_only_what_is_checked_decides() -> None:
    actual = {"E2E p50": 1.0, "E2E p99": 2.0, "TTFT p99": 1.0}
    near = Comparison(
        load=0.5,
        rate_per_s=1.0,
        actual=actual,
        predicted={"E2E p50": 1.09, "E2E p99": 1.82, "TTFT p99": 3.0},
        rescaled={},
        step_ratios={},
        step_pace=1.0,
        probe_paces=(1.0, 1.0),
    )
    assert near.is_good
    assert near.headline() == "load 0.5: E2E p50 +9.0%, E2E p99 -9.0%, steps +0.0%"
    far = replace(near, predicted={"E2E p50": 1.0, "E2E p99": 2.3, "TTFT p99": 1.0})
    assert not far.is_good


def test_the_calibration_covers_every_step(config: Path) -> None:
    [engine] = resolve(config, [{}])
    words = calibration(engine, 100)
    axes = dict(zip(words[::2], words[1::2], strict=True))
    assert axes["--batches"] == "1,2,4"
    assert axes["--contexts"] == "32,100"
    assert axes["--prompt-lens"] == "4,8,16,32"
    assert axes["--dtype"] == "float32"
