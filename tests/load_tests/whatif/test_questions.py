"""The whole command, on settings of the embedded model and a trace of a few requests."""

import json
from pathlib import Path
from typing import Any

import pytest

from load_tests.__main__ import main

ARGS = {"model": "", "device": "cpu", "num_blocks": 24, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    path = folder / "serve_config.yaml"
    application = {"name": "llm", "args": ARGS | {"model": str(folder)}}
    # every JSON document is YAML
    path.write_text(json.dumps({"applications": [application]}))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        {
            "timestamp": 400 * i,
            "input_length": 40,
            "output_length": 20 + i,
            "hash_ids": [1, 2 + i % 2],
            "hash_block_size": 16,
            "finish_reasons": ["length"],
        }
        for i in range(12)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def whatif(config: Path, output: Path, *words: str) -> dict[str, Any]:
    options = ["--config", str(config), "--output", str(output), "--processes", "1"]
    assert main(["whatif", *options, *words]) == 0
    document: dict[str, Any] = json.loads((output / "whatif.json").read_text())
    return document


@pytest.mark.slow
def test_the_same_question_has_the_same_answer_byte_by_byte(
    config: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--trace", str(trace), "--set", "block_size=32", "num_blocks=12", "--slo",
        "ttft=1,tpot=0.1", "--tornado", "rate=0.5:2", "prefix_cache=false:true",
    )  # fmt: skip
    found = whatif(config, tmp_path / "a", *words)
    whatif(config, tmp_path / "b", *words)
    for name in ("whatif.json", "latencies.svg", "tornado.svg"):
        first, second = ((tmp_path / run / name).read_bytes() for run in "ab")
        assert first == second
    assert found["changes"] == {"block_size": "32", "num_blocks": "12"}
    sizes = {name: settings["block_size"] for name, settings in found["settings"].items()}
    assert sizes == {"as configured": 16, "what if": 32}
    # two prompts of 40 tokens share 16 tokens, half of them 32
    small, large = (found["figures"][name]["cached_share"] for name in sizes)
    assert small > 0
    assert large > 0
    assert found["slo"]["replicas"]["what if"]["num_replicas"] == 1
    rate, cache = found["tornado"]
    assert (rate["knob"], cache["knob"]) == ("rate", "prefix_cache")
    assert rate["output_tokens_per_s"][0] < rate["output_tokens_per_s"][1]
    assert cache["e2e_p99_s"][0] >= cache["e2e_p99_s"][1]
    shown = capsys.readouterr().out
    assert "E2E p50 / p90 / p99 (s)" in shown
    assert "1 replicas serve 0.99 of the requests well" in shown


def test_a_drawn_trace_and_the_knobs_that_mostly_matter(config: Path, tmp_path: Path) -> None:
    words = ("--synthetic", "fixed:60:12", "--rate", "4", "--requests", "10", "--tornado")
    found = whatif(config, tmp_path, *words)
    assert found["trace"]["num_requests"] == 10
    assert list(found["figures"]) == ["as configured"]
    bars = {bar["knob"]: bar for bar in found["tornado"]}
    assert (bars["block_size"]["low"], bars["block_size"]["high"]) == ("8", "32")
    # every knob could be turned both ways
    assert not [bar for bar in bars.values() if bar["problems"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "blok_size=32"], "unknown option 'blok_size'; did you mean 'block_size'?"),
        (["--set", "block_size=0"], "block_size is 0"),
        (["--set", "block_size"], "--set 'block_size' is not NAME=VALUE"),
        (["--set", "block_size=[3"], "block_size=[3 is no YAML value"),
        (["--set", "device=cuda", "num_blocks=null"], "--set num_blocks=N"),
        (["--tornado", "blok_size=8:32"], "did you mean 'block_size'?"),
        (["--tornado", "rate=0:2"], "--tornado: rate is '0', not a number above 0"),
        (["--tornado", "replicas=1:many"], "--tornado: replicas is 'many'"),
        (["--tornado", "block_size=8"], "is not NAME=LOW:HIGH"),
        (["--slo", "tftt=1"], "did you mean ttft?"),
        (["--slo", "ttft=soon"], "--slo: ttft is 'soon'"),
        (["--slo", "ttft=0"], "--slo: ttft is 0, not above 0"),
        (["--step-times", "h1000"], "step times 'h1000': no file and none of a100_opt_13b"),
        (["--config", "nowhere.yaml"], "nowhere.yaml does not exist"),
    ],
)
def test_a_bad_question_is_refused_in_words(
    words: list[str],
    message: str,
    config: Path,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--config", str(config), "--trace", str(trace), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as raised:
        main(["whatif", *options, "--processes", "1", *words])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_routing_by_prefix_is_compared_with_two_choices(
    config: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--trace", str(trace), "--replicas", "2", "--compare-routing")
    found = whatif(config, tmp_path / "a", *words, "--set", "block_size=32", "num_blocks=12")
    assert list(found["figures"]) == ["by two choices", "as configured", "what if"]
    assert "by two choices" in capsys.readouterr().out
    # the settings are those that are asked about
    sizes = {name: settings["block_size"] for name, settings in found["settings"].items()}
    assert sizes == {"by two choices": 32, "as configured": 16, "what if": 32}
