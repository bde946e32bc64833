import json
from pathlib import Path

import pytest

from load_tests.__main__ import main


def test_a_command_prints_writes_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["offline", "--traces", "alpaca", "--requests", "3", "--decode", "1"]
    words += ["--decode-input", "4", "--decode-output", "2", "--decode-schemas", "2"]
    words += ["--prompts", "6"]
    words += ["--output", str(tmp_path), "--log"]
    assert main(words) == 0
    (written,) = tmp_path.glob("offline_*.json")
    document = json.loads(written.read_text())
    assert [measure["kind"] for measure in document["measures"]] == ["Offline", *["Decode"] * 3]
    assert [measure["num_schemas"] for measure in document["measures"][1:]] == [0, 2, 0]
    assert [measure["input_len"] for measure in document["measures"][1:]] == [4, 4, 6]
    assert document["turns"][0]["figures"][3]["prefill_tokens_per_s"] > 0
    assert document["turns"][0]["figures"][0]["output_tokens_per_s"] > 0
    assert written.with_suffix(".png").stat().st_size > 1000
    printed = capsys.readouterr().out
    # as soon as a system has measured, and in the table at the end
    assert printed.count("batch 1") > 1
    assert "  pagoda, alpaca: " in printed.partition("┏")[0]
    assert "2 schemas" in printed
    assert "alpaca: " in (tmp_path / "LOG.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "nowhere"], "neither a model folder nor one of"),
        (["--order", "pagoda,x"], "--order names 'x'"),
        (["--peer", "vllm"], "the peer vllm cannot be imported here"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main(["beam", *words, "--output", str(tmp_path)])
    assert message in capsys.readouterr().err


def test_requests_that_do_not_fit_the_model_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):
        main(["online", "--trace", "chat", "--rates", "4", "--output", str(tmp_path)])
    assert "more than --max-model-len 2048: raise it, up to 8192" in capsys.readouterr().err
