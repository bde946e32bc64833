"""Makes config.json of a GGUF file's metadata: one entry for each kind of model.

Sources: llama.cpp's convert_hf_to_gguf.py, which writes the fields, and src/llama-model.cpp, which
has what it leaves out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.models.conversion.gguf_reader import GgufModel
from engine.errors import ConfigError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """What is particular to a kind of model in GGUF files.

    Attributes:
        architecture: transformers' name of it, which config.json has.
        more: fields of config.json that others lack.
        has_permuted_heads: whether the rows of q and k are stored interleaved.
        has_shifted_norms: whether 1 was added to the weights of norms.
        is_transposed: whether matrices of layers are stored transposed.
    """

    architecture: str
    model_type: str
    more: Callable[[GgufModel], Json] = lambda _: {}
    has_permuted_heads: bool = False
    has_shifted_norms: bool = False
    is_transposed: bool = False


def family_of(model: GgufModel) -> GgufFamily:
    """Find the entry of a file.

    Raises:
        ConfigError: if its kind of model is not known.
    """
    name = model.architecture
    if name == "llama" and model.of_model("expert_count", 0):
        name = "mixtral"
    if name not in _FAMILIES:
        raise ConfigError(
            f"{model.path} holds a model of kind {name!r}; GGUF files can be of "
            f"{', '.join(_FAMILIES)}"
        )
    return _FAMILIES[name]


def model_config(model: GgufModel, family: GgufFamily) -> Json:
    """Make the content of config.json.

    Raises:
        ConfigError: if a field is missing, or says what config.json has no word for.
    """
    embedding = model.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(
            f"{model.path} has no tensor 'token_embd.weight'; is it a language model?"
        )
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": int(embedding.shape[1]),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "torch_dtype": "bfloat16",
        **(_gpt2(model) if family.is_transposed else _decoder(model)),
        **family.more(model),
        **end_ids(model),
    }


def end_ids(model: GgufModel) -> Json:
    """Ids of the tokens that begin, end and fill sequences; several can end one."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [model.of_tokenizer(name) for name in names]
    different = list(dict.fromkeys(end for end in ends if end is not None))
    found = {
        "bos_token_id": model.of_tokenizer("bos_token_id"),
        "eos_token_id": different if len(different) > 1 else next(iter(different), None),
        "pad_token_id": model.of_tokenizer("padding_token_id"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _decoder(model: GgufModel) -> Json:
    num_heads = _same(model, "attention.head_count")
    hidden_size = _number(model, "embedding_length")
    head_dim = model.of_model("attention.key_length", hidden_size // num_heads)
    rotated = model.of_model("rope.dimension_count", head_dim)
    config = {
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": _same(model, "feed_forward_length"),
        "num_hidden_layers": _number(model, "block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": _same(model, "attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": _number(model, "context_length"),
        "rms_norm_eps": _shortest(_number(model, "attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(model.of_model("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(model, head_dim),
    }
    biases = {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_down.bias"}
    config |= {name: True for name, tensor in biases.items() if tensor in model.tensors}
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    return config


def _gpt2(model: GgufModel) -> Json:
    return {
        "activation_function": "gelu_new",
        "n_embd": _number(model, "embedding_length"),
        "n_inner": _number(model, "feed_forward_length"),
        "n_layer": _number(model, "block_count"),
        "n_head": _same(model, "attention.head_count"),
        "n_positions": _number(model, "context_length"),
        "layer_norm_epsilon": _shortest(_number(model, "attention.layer_norm_epsilon")),
        # files repeat it
        "tie_word_embeddings": True,
    }


def _experts(model: GgufModel) -> Json:
    return {
        "num_experts": _number(model, "expert_count"),
        "num_experts_per_tok": _number(model, "expert_used_count"),
        "moe_intermediate_size": _number(model, "expert_feed_forward_length"),
        # llama.cpp always does
        "norm_topk_prob": True,
    }


def _mixtral(model: GgufModel) -> Json:
    return {
        "num_local_experts": _number(model, "expert_count"),
        "num_experts_per_tok": _number(model, "expert_used_count"),
    }


def _gemma(model: GgufModel) -> Json:
    """Gemma 2 and 3. Of each the 27B divides scores by another number than its head size has."""
    config: Json = {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": _number(model, "attention.sliding_window"),
        "query_pre_attn_scalar": _number(model, "attention.key_length"),
    }
    of_27b = {"gemma2": 46, "gemma3": 62}[model.architecture]
    if model.of_model("block_count") == of_27b:
        heads = _same(model, "attention.head_count")
        config["query_pre_attn_scalar"] = _number(model, "embedding_length") // heads
    period = 2 if model.architecture == "gemma2" else 6
    layers = range(_number(model, "block_count"))
    config["layer_types"] = [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in layers
    ]
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        value = model.of_model(name)
        config[name] = None if value is None else _shortest(value)
    if model.architecture == "gemma3":
        local = _shortest(model.of_model("rope.freq_base_swa", 10000.0))
        config["rope_local_base_freq"] = local
    return config


def _phi3(model: GgufModel) -> Json:
    config: Json = {"sliding_window": model.of_model("attention.sliding_window")}
    original = model.of_model("rope.scaling.original_context_length")
    return config if original is None else {**config, "original_max_position_embeddings": original}


def _granite(model: GgufModel) -> Json:
    names = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }
    return {ours: _shortest(_number(model, theirs)) for ours, theirs in names.items()}


_FAMILIES = {
    "llama": GgufFamily(
        architecture="LlamaForCausalLM", model_type="llama", has_permuted_heads=True
    ),
    "mixtral": GgufFamily(
        architecture="MixtralForCausalLM",
        model_type="mixtral",
        more=_mixtral,
        has_permuted_heads=True,
    ),
    "qwen2": GgufFamily(architecture="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen3": GgufFamily(architecture="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3moe": GgufFamily(
        architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", more=_experts
    ),
    "gemma2": GgufFamily(
        architecture="Gemma2ForCausalLM", model_type="gemma2", more=_gemma, has_shifted_norms=True
    ),
    "gemma3": GgufFamily(
        architecture="Gemma3ForCausalLM",
        model_type="gemma3_text",
        more=_gemma,
        has_shifted_norms=True,
    ),
    "phi3": GgufFamily(architecture="Phi3ForCausalLM", model_type="phi3", more=_phi3),
    "olmo2": GgufFamily(architecture="Olmo2ForCausalLM", model_type="olmo2"),
    "granite": GgufFamily(
        architecture="GraniteForCausalLM",
        model_type="granite",
        more=_granite,
        has_permuted_heads=True,
    ),
    "gpt2": GgufFamily(architecture="GPT2LMHeadModel", model_type="gpt2", is_transposed=True),
}


def _rope_scaling(model: GgufModel, head_dim: int) -> Json | None:
    if "rope_freqs.weight" in model.tensors:
        return _llama3_scaling(model, head_dim)
    if "rope_factors_long.weight" in model.tensors:
        return {
            "rope_type": "longrope",
            "long_factor": _values(model, "rope_factors_long.weight"),
            "short_factor": _values(model, "rope_factors_short.weight"),
        }
    kind = model.of_model("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ConfigError(f"{model.path} has RoPE scaling {kind!r}, which is not known")
    scaling: Json = {"rope_type": kind, "factor": _shortest(_number(model, "rope.scaling.factor"))}
    if kind == "yarn":
        original = _number(model, "rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3_scaling(model: GgufModel, head_dim: int) -> Json:
    """Find the parameters that gave the stored divisors of frequencies, which Llama 3 has."""
    stored = np.array(_values(model, "rope_freqs.weight"), np.float64)
    theta = model.of_model("rope.freq_base", 10000.0)
    factor, original = float(stored.max()), 8192
    lengths = 2 * np.pi * theta ** (np.arange(0.0, head_dim, 2.0) / head_dim)
    smooth = np.clip((original / lengths - 1) / 3, 0, 1)
    if stored.shape != lengths.shape or not np.allclose(
        1 / ((1 - smooth) / factor + smooth), stored, rtol=1e-4
    ):
        raise ConfigError(f"{model.path} has RoPE divisors that are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def _values(model: GgufModel, name: str) -> list[float]:
    return [_shortest(value) for value in model.tensors[name].data.reshape(-1)]


def _number(model: GgufModel, name: str) -> Any:
    return model.need(f"{model.architecture}.{name}")


def _same(model: GgufModel, name: str, default: int | None = None) -> int:
    """Read a number that some files give for each layer."""
    value = _number(model, name) if default is None else model.of_model(name, default)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ConfigError(f"{model.path}: {name} differs between layers, which is not served")
        value = value[0]
    return int(value)


def _shortest(value: float) -> float:
    # the file holds float32: 9.999999747378752e-06 was written as 1e-05
    return float(str(np.float32(value)))
