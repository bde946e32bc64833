from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from app.models.conversion.gguf_config import end_ids, family_of, model_config
from engine.errors import ConfigError

THETA, HEAD_DIM = 500000.0, 64
BASE = {
    "qwen2.block_count": 2, "qwen2.context_length": 64, "qwen2.embedding_length": 128,
    "qwen2.feed_forward_length": 32, "qwen2.attention.head_count": 2,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip


class Tensor:
    def __init__(self, *shape: int, data: Any = None) -> None:
        self.shape = shape
        self.data = np.zeros(shape[::-1], np.float32) if data is None else data


class FakeModel:
    """The metadata of a file, without the file."""

    def __init__(self, architecture: str, fields: dict[str, Any], **tensors: Tensor) -> None:
        self.path = Path("m.gguf")
        self.architecture = architecture
        self.fields = {n.replace("qwen2.", f"{architecture}."): v for n, v in fields.items()}
        self.tensors = {"token_embd.weight": Tensor(128, 7)} | {
            name.replace("__", "."): tensor for name, tensor in tensors.items()
        }

    def of_model(self, name: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.architecture}.{name}", default)

    def of_tokenizer(self, name: str, default: Any = None) -> Any:
        return self.fields.get(f"tokenizer.ggml.{name}", default)

    def need(self, name: str) -> Any:
        if name not in self.fields:
            raise ConfigError(f"lacks {name}")
        return self.fields[name]


def config_of(
    architecture: str = "qwen2", fields: dict[str, Any] | None = None, **tensors: Tensor
) -> Any:
    model: Any = FakeModel(architecture, BASE | (fields or {}), **tensors)
    return model_config(model, family_of(model))


def test_missing_fields_mean_what_llama_cpp_takes_them_for() -> None:
    config = config_of()
    assert (config["rope_theta"], config["rope_scaling"]) == (10000.0, None)
    assert (config["num_key_value_heads"], config["head_dim"]) == (2, 64)
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (7, True)
    assert config["rms_norm_eps"] == 1e-6
    assert not config_of(output__weight=Tensor(128, 7))["tie_word_embeddings"]


def test_a_field_that_cannot_be_missing_is_named() -> None:
    fields = {name: value for name, value in BASE.items() if "context" not in name}
    model: Any = FakeModel("qwen2", fields)
    with pytest.raises(ConfigError, match="context_length"):
        model_config(model, family_of(model))


def test_every_end_is_an_end() -> None:
    ids = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 6}
    model: Any = FakeModel("qwen2", BASE | ids | {"tokenizer.ggml.eom_token_id": 5})
    assert end_ids(model) == {"eos_token_id": [5, 6]}
    model = FakeModel("qwen2", BASE | {"tokenizer.ggml.eos_token_id": 5})
    assert end_ids(model) == {"eos_token_id": 5}


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_of_rope_is_kept(kind: str) -> None:
    fields = {
        "qwen2.rope.scaling.type": kind,
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 16,
    }
    expected: dict[str, Any] = {"rope_type": kind, "factor": 4.0}
    if kind == "yarn":
        expected["original_max_position_embeddings"] = 16
    assert config_of(fields=fields)["rope_scaling"] == expected
    fields["qwen2.rope.scaling.type"] = "new"
    with pytest.raises(ConfigError, match="RoPE scaling 'new'"):
        config_of(fields=fields)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_parameters_of_llama_3_are_found_in_its_divisors(factor: float) -> None:
    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=HEAD_DIM, max_position_embeddings=131072,
        rope_parameters={**scaling, "rope_theta": THETA},
    )  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = THETA ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    divisors = (plain / scaled.numpy()).astype(np.float32)
    fields = {"qwen2.rope.freq_base": THETA}
    found = config_of("llama", fields, rope_freqs__weight=Tensor(32, data=divisors))
    assert found["rope_scaling"] == scaling
    with pytest.raises(ConfigError, match="not those of Llama 3"):
        config_of("llama", fields, rope_freqs__weight=Tensor(32, data=divisors[::-1].copy()))


def test_factors_of_long_and_short_texts_become_lists() -> None:
    config = config_of(
        "phi3",
        {"qwen2.rope.dimension_count": 32, "qwen2.rope.scaling.original_context_length": 16},
        rope_factors_long__weight=Tensor(2, data=np.array([1.5, 2], np.float32)),
        rope_factors_short__weight=Tensor(2, data=np.array([1, 1.1], np.float32)),
    )
    assert config["rope_scaling"] == {
        "rope_type": "longrope", "long_factor": [1.5, 2.0], "short_factor": [1.0, 1.1],
    }  # fmt: skip
    assert config["partial_rotary_factor"] == 0.5
    assert config["original_max_position_embeddings"] == 16


def test_only_the_largest_gemmas_divide_scores_by_another_number() -> None:
    fields = {"qwen2.attention.key_length": 32, "qwen2.attention.sliding_window": 16}
    assert config_of("gemma3", fields)["query_pre_attn_scalar"] == 32
    assert config_of("gemma3", fields)["layer_types"] == ["sliding_attention"] * 2
    large = config_of("gemma3", fields | {"qwen2.block_count": 62})
    assert large["query_pre_attn_scalar"] == 64
    assert large["layer_types"][5:7] == ["full_attention", "sliding_attention"]
    assert config_of("gemma2", fields)["layer_types"][1] == "full_attention"


def test_layers_of_different_shapes_are_refused() -> None:
    fields = {"qwen2.attention.head_count_kv": [1, 1]}
    assert config_of(fields=fields)["num_key_value_heads"] == 1
    with pytest.raises(ConfigError, match="head_count_kv differs between layers"):
        config_of(fields={"qwen2.attention.head_count_kv": [1, 2]})


@pytest.mark.parametrize("architecture", ["clip", "mamba", "qwen35"])
def test_other_kinds_are_refused(architecture: str) -> None:
    with pytest.raises(ConfigError, match=f"kind '{architecture}'.* llama, mixtral, qwen2"):
        config_of(architecture)
