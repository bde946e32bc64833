"""Single steps of the tiny model on the CPU."""

import json
import math
from pathlib import Path

import pytest

from engine.model import dummy
from load_tests.__main__ import main
from load_tests.bench.in_process.step import StepTimer
from load_tests.local_engine import local_config

_SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "float32", "eos_token_id": 2,
    "sliding_window": 8,
}  # fmt: skip
_WINDOWED = {
    "gemma3": _SMALL | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "sliding_window_pattern": 3, "query_pre_attn_scalar": 16, "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gpt_oss": _SMALL | {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_experts_per_tok": 2, "num_local_experts": 4, "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4"},
    },
}  # fmt: skip


def test_steps_of_every_batch_and_mixed_ones_are_timed(tmp_path: Path) -> None:
    words = ["step", "--batches", "1,2", "--inputs", "8", "--steps", "16", "--chunks", "4"]
    words += ["--num-blocks", "64", "--max-model-len", "512"]
    assert main([*words, "--output", str(tmp_path), "--log"]) == 0
    [path] = tmp_path.glob("step_*.json")
    document = json.loads(path.read_text())
    steps = document["steps"]
    assert [(step["batch"], step["chunk"]) for step in steps] == [(1, 0), (2, 0), (1, 4)]
    assert all(step["step_s"] > 0 and step["num_steps"] > 0 for step in steps)
    assert document["config"]["num_blocks"] == 64
    assert path.with_suffix(".png").stat().st_size > 1000
    assert "batch 1: " in (tmp_path / "LOG.md").read_text()


def test_the_time_of_a_step_is_shown_by_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["step", "--batches", "2", "--inputs", "8", "--steps", "16", "--profile"]
    words += ["--num-blocks", "64", "--max-model-len", "512", "--output", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "a step that decodes 2" in printed
    assert "aten::" in printed
    with pytest.raises(SystemExit):
        main([*words, "--tensor-parallel", "2"])
    assert "--profile sees this process only" in capsys.readouterr().err


def _timer(folder: Path, family: str) -> StepTimer:
    (folder / "config.json").write_text(json.dumps(_WINDOWED[family]))
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 128}
    return StepTimer(local_config(folder, "cpu", num_blocks=64, **options))


@pytest.mark.parametrize("family", _WINDOWED)
def test_the_context_of_window_layers_is_what_was_asked_for(tmp_path: Path, family: str) -> None:
    timer = _timer(tmp_path, family)
    decode, mixed = timer.decode(2, 40, 16), timer.mixed(2, 16, 40)
    timer.close()
    # 40 tokens and those of the answer, of 24 steps the middle
    for timed in (decode, mixed):
        assert timed.num_steps >= 8
        assert 44 < timed.context < 60


def test_a_model_without_numbers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dummy, "_STD", math.nan)
    timer = _timer(tmp_path, "gemma3")
    with pytest.raises(ValueError, match="no numbers"):
        timer.decode(1, 4, 16)
    timer.close()
