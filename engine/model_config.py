"""Reads the shape of a model from its folder. Standard library only.

Missing fields mean what they mean in transformers; both its older spelling (`rope_theta`,
`rope_scaling`) and the one of version 5 (`rope_parameters`) are understood.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ModelConfig, RopeConfig
from engine.errors import ConfigError

logger = logging.getLogger(__name__)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What differs between the architectures, and transformers' defaults of missing fields."""

    num_kv_heads: int | None = None
    max_position: int
    eos_token_id: int | None = 2
    sliding_window: int | None = None


_FAMILIES = {
    "LlamaForCausalLM": _Family(max_position=2048),
    "MistralForCausalLM": _Family(num_kv_heads=8, max_position=131072, sliding_window=4096),
    "Qwen2ForCausalLM": _Family(
        num_kv_heads=32, max_position=32768, eos_token_id=None, sliding_window=4096
    ),
}
_MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json and, where there is one, generation_config.json.

    Raises:
        ConfigError: if a file is missing or damaged, or the model's kind is not supported.
    """
    config = _read_json(folder / "config.json")
    try:
        return _parse(config, _eos_source(folder, config))
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from None


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: {path.parent} is not a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, expected an object")
    return value


def _eos_source(folder: Path, config: Json) -> Json:
    path = folder / "generation_config.json"
    generation = _read_json(path) if path.exists() else {}
    return generation if generation.get("eos_token_id") is not None else config


def _parse(config: Json, eos_source: Json) -> ModelConfig:
    architecture = _architecture(config)
    family = _FAMILIES[architecture]
    _refuse_variants(config)
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    vocab_size = _size(config, "vocab_size")
    max_position = _size(config, "max_position_embeddings", family.max_position)
    bias = _attention_bias(config, architecture)
    model = ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_size(config, "intermediate_size"),
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, family, num_heads),
        head_dim=_size(config, "head_dim", hidden_size // num_heads),
        max_position=_within_window(config, architecture, max_position),
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope=_rope(config, max_position),
        attention_bias=bias[0],
        output_bias=bias[1],
        tie_embeddings=_flag(config, "tie_word_embeddings"),
        eos_token_ids=_eos_token_ids(eos_source, family, vocab_size),
    )
    _check_heads(model)
    return model


def _architecture(config: Json) -> str:
    supported = f"supported are {', '.join(_FAMILIES)}"
    if config.get("auto_map"):
        raise ConfigError(f"the model brings code of its own (auto_map), never run; {supported}")
    named = config.get("architectures") or [_MODEL_TYPES.get(str(config.get("model_type")))]
    if not isinstance(named, list) or named[0] not in _FAMILIES:
        kind = named[0] if isinstance(named, list) and named[0] else config.get("model_type")
        raise ConfigError(f"architecture {kind!r} is not supported; {supported}")
    return str(named[0])


def _refuse_variants(config: Json) -> None:
    if config.get("quantization_config"):
        raise ConfigError("quantised weights are not supported; choose a float16 or bfloat16 model")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"hidden_act {activation!r} is not supported, only 'silu'")
    if _flag(config, "mlp_bias"):
        raise ConfigError("mlp_bias is not supported")


def _num_kv_heads(config: Json, family: _Family, num_heads: int) -> int:
    # an explicit null means "as many as query heads", as in transformers
    missing = family.num_kv_heads if "num_key_value_heads" not in config else None
    return _size(config, "num_key_value_heads", missing or num_heads)


def _attention_bias(config: Json, architecture: str) -> tuple[bool, bool]:
    """Whether query, key and value have a bias, and whether the output projection has."""
    if architecture == "LlamaForCausalLM":
        bias = _flag(config, "attention_bias")
        return bias, bias
    return architecture == "Qwen2ForCausalLM", False


def _within_window(config: Json, architecture: str, max_position: int) -> int:
    """Cap the context at the sliding window: up to there it equals full attention."""
    window = config.get("sliding_window", _FAMILIES[architecture].sliding_window)
    unused = architecture == "Qwen2ForCausalLM" and not _flag(config, "use_sliding_window")
    if architecture == "LlamaForCausalLM" or unused or window is None:
        return max_position
    window = _size({"sliding_window": window}, "sliding_window")
    if window < max_position:
        logger.warning("context_capped sliding_window=%d max_position=%d", window, max_position)
    return min(window, max_position)


def _rope(config: Json, max_position: int) -> RopeConfig:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise ConfigError(f"rope_scaling {scaling!r} is not an object")
    if _number({**config, **scaling}, "partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("partial_rotary_factor other than 1 is not supported")
    theta = _number(scaling, "rope_theta", _number(config, "rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=_number(scaling, "factor"))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            scaling="llama3",
            factor=_number(scaling, "factor"),
            low_freq_factor=_number(scaling, "low_freq_factor"),
            high_freq_factor=_number(scaling, "high_freq_factor"),
            original_max_position=_size(scaling, "original_max_position_embeddings", max_position),
        )
    raise ConfigError(f"rope scaling {kind!r} is not supported, only 'linear' and 'llama3'")


def _eos_token_ids(source: Json, family: _Family, vocab_size: int) -> tuple[int, ...]:
    value = source.get("eos_token_id", family.eos_token_id)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ConfigError(f"eos_token_id {token!r} is not in the vocabulary of {vocab_size}")
    return tuple(dict.fromkeys(ids))


def _check_heads(model: ModelConfig) -> None:
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            f"num_attention_heads {model.num_heads} is not a multiple of "
            f"num_key_value_heads {model.num_kv_heads}"
        )
    if model.head_dim % 2:
        raise ConfigError(f"head_dim {model.head_dim} is odd")


def _size(config: Json, name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is {value!r}, expected an integer of at least 1")
    return value


def _number(config: Json, name: str, default: float | None = None) -> float:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is bool or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r}, expected a positive number")
    return float(value)


def _flag(config: Json, name: str) -> bool:
    value = config.get(name)
    if value not in (None, True, False):
        raise ConfigError(f"{name} is {value!r}, expected true or false")
    return bool(value)
