"""The LLaMA family as transformers publishes it: LLaMA 1 to 3, SmolLM2, Mistral, Qwen2.

Both spellings of the rotary settings, `rope_theta` with `rope_scaling` and version 5's
`rope_parameters`, are understood.
"""

import logging
from dataclasses import dataclass
from functools import partial

from engine.architectures.architecture import Architecture, Tensors
from engine.architectures.fields import Json, flag, number, require, size
from engine.config import ModelConfig, RopeConfig
from engine.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """What differs between the members of the family, and transformers' defaults of missing fields.

    Attributes:
        qkv_bias: whether there is one; None leaves it to config.json, and the output has it too.
        window_flag: field that must be true for the sliding window to count; empty for always.
    """

    name: str
    num_kv_heads: int | None = None
    max_position: int
    qkv_bias: bool | None = False
    has_window: bool = True
    window_flag: str = ""


_LLAMA = _Member(name="LlamaForCausalLM", max_position=2048, qkv_bias=None, has_window=False)
_MISTRAL = _Member(name="MistralForCausalLM", num_kv_heads=8, max_position=131072)
_QWEN2 = _Member(
    name="Qwen2ForCausalLM",
    num_kv_heads=32,
    max_position=32768,
    qkv_bias=True,
    window_flag="use_sliding_window",
)
_DEFAULT_WINDOW = 4096


def _parse(member: _Member, config: Json) -> ModelConfig:
    require(config, "hidden_act", "silu")
    if flag(config, "mlp_bias"):
        raise ConfigError("mlp_bias is not supported")
    hidden_size, num_heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    max_position = size(config, "max_position_embeddings", member.max_position)
    listed_bias = member.qkv_bias is None and flag(config, "attention_bias")
    model = ModelConfig(
        architecture=member.name,
        vocab_size=size(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=size(config, "intermediate_size"),
        num_layers=size(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, member, num_heads),
        head_dim=size(config, "head_dim", hidden_size // num_heads),
        max_position=_within_window(config, member, max_position),
        norm_eps=number(config, "rms_norm_eps", 1e-6),
        rope=_rope(config, max_position),
        attention_bias=listed_bias or bool(member.qkv_bias),
        output_bias=listed_bias,
        tie_embeddings=flag(config, "tie_word_embeddings"),
    )
    _check_heads(model)
    return model


def _num_kv_heads(config: Json, member: _Member, num_heads: int) -> int:
    # an explicit null means "as many as query heads", as in transformers
    missing = member.num_kv_heads if "num_key_value_heads" not in config else None
    return size(config, "num_key_value_heads", missing or num_heads)


def _within_window(config: Json, member: _Member, max_position: int) -> int:
    """Cap the context at the sliding window: up to there it equals full attention."""
    unused = bool(member.window_flag) and not flag(config, member.window_flag)
    window = config.get("sliding_window", _DEFAULT_WINDOW)
    if not member.has_window or unused or window is None:
        return max_position
    window = size({"sliding_window": window}, "sliding_window")
    if window < max_position:
        logger.warning("context_capped sliding_window=%d max_position=%d", window, max_position)
    return min(window, max_position)


def _rope(config: Json, max_position: int) -> RopeConfig:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise ConfigError(f"rope_scaling {scaling!r} is not an object")
    if number({**config, **scaling}, "partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError("partial_rotary_factor other than 1 is not supported")
    theta = number(scaling, "rope_theta", number(config, "rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=number(scaling, "factor"))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            scaling="llama3",
            factor=number(scaling, "factor"),
            low_freq_factor=number(scaling, "low_freq_factor"),
            high_freq_factor=number(scaling, "high_freq_factor"),
            original_max_position=size(scaling, "original_max_position_embeddings", max_position),
        )
    raise ConfigError(f"rope scaling {kind!r} is not supported, only 'linear' and 'llama3'")


def _check_heads(model: ModelConfig) -> None:
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            f"num_attention_heads {model.num_heads} is not a multiple of "
            f"num_key_value_heads {model.num_kv_heads}"
        )
    if model.head_dim % 2:
        raise ConfigError(f"head_dim {model.head_dim} is odd")


def _tensors(model: ModelConfig) -> Tensors:
    hidden = model.hidden_size
    tensors: Tensors = {
        "model.embed_tokens.weight": (model.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not model.tie_embeddings:
        tensors["lm_head.weight"] = (model.vocab_size, hidden)
    layer = _layer_tensors(model)
    for index in range(model.num_layers):
        tensors |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return tensors


def _layer_tensors(model: ModelConfig) -> Tensors:
    hidden, inner = model.hidden_size, model.intermediate_size
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    tensors: Tensors = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if model.attention_bias:
        tensors |= {f"self_attn.{name}_proj.bias": (kv_size,) for name in ("k", "v")}
        tensors["self_attn.q_proj.bias"] = (q_size,)
    if model.output_bias:
        tensors["self_attn.o_proj.bias"] = (hidden,)
    return tensors


def _is_redundant(model: ModelConfig, name: str) -> bool:
    """Whether it is a buffer of RoPE, or the copy of a tied embedding."""
    is_copy = model.tie_embeddings and name == "lm_head.weight"
    return is_copy or name.endswith("rotary_emb.inv_freq")


def _architecture(member: _Member, model_type: str, eos_token_id: int | None) -> Architecture:
    return Architecture(
        model_type=model_type,
        eos_token_id=eos_token_id,
        parse=partial(_parse, member),
        tensors=_tensors,
        canonical_name=str,
        is_redundant=_is_redundant,
    )


LLAMA = _architecture(_LLAMA, "llama", 2)
MISTRAL = _architecture(_MISTRAL, "mistral", 2)
QWEN2 = _architecture(_QWEN2, "qwen2", None)
