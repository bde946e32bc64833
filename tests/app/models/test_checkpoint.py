import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from app.models.checkpoint import check_weights, expected_tensors
from engine.errors import ConfigError
from engine.model_config import read_model_config
from engine.model_files import SINGLE_FILE
from tests.app.models.checkpoints import CONFIG, write_model, write_safetensors, write_sharded

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "num_key_value_heads": None,
    "intermediate_size": None,
}
OPT = GPT2 | {"model_type": "opt", "architectures": ["OPTForCausalLM"], "ffn_dim": 24}


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama"},
        {"model_type": "llama", "tie_word_embeddings": True, "attention_bias": True, "head_dim": 6},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        OPT,
        OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 8},
        GPT2,
    ],
)
def test_expected_tensors_are_those_of_transformers(
    changes: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.from_pretrained(tmp_path)
        )
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if changes.get("tie_word_embeddings"):
        del theirs["lm_head.weight"]
    assert expected_tensors(read_model_config(tmp_path)) == theirs


def test_complete_folders_pass(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole")
    sharded = tmp_path / "sharded"
    write_sharded(sharded)
    for folder in (whole, sharded):
        check_weights(folder, read_model_config(folder))


def test_redundant_tensors_are_allowed(tmp_path: Path) -> None:
    model = read_model_config(write_model(tmp_path, tie_word_embeddings=True))
    redundant: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (32, 16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": (2,),
    }
    write_safetensors(tmp_path / SINGLE_FILE, expected_tensors(model) | redundant)
    check_weights(tmp_path, model)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = read_model_config(write_model(tmp_path))
    shapes = expected_tensors(model)
    del shapes["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(tmp_path / SINGLE_FILE, shapes)
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj.*\(1 of 21 missing\)"):
        check_weights(tmp_path, model)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    model = read_model_config(write_model(tmp_path))
    shapes = expected_tensors(model) | {"model.norm.weight": (17,)}
    write_safetensors(tmp_path / SINGLE_FILE, shapes)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight' has shape \[17\].*\[16\]"):
        check_weights(tmp_path, model)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    model = read_model_config(write_model(tmp_path))
    bias = {"model.layers.0.self_attn.q_proj.bias": (16,)}
    write_safetensors(tmp_path / SINGLE_FILE, expected_tensors(model) | bias)
    with pytest.raises(ConfigError, match=r"q_proj\.bias' has no place"):
        check_weights(tmp_path, model)


def test_weights_that_are_not_floats_are_refused(tmp_path: Path) -> None:
    model = read_model_config(write_model(tmp_path))
    write_safetensors(tmp_path / SINGLE_FILE, expected_tensors(model), "I8", 1)
    with pytest.raises(ConfigError, match="dtype I8, supported are F32, F16, BF16"):
        check_weights(tmp_path, model)
