"""Which tensors the checkpoint of a model must hold, and whether a folder holds them."""

from pathlib import Path

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model_files import TensorInfo, find_weights

_FLOAT_DTYPES = ("F32", "F16", "BF16")


def check_weights(folder: Path, model: ModelConfig) -> None:
    """Check that a folder holds exactly the tensors of its model; no weight is read.

    Raises:
        ConfigError: naming the first tensor that is missing, superfluous or misshapen.
    """
    found = find_weights(folder)
    expected = expected_tensors(model)
    if missing := sorted(expected.keys() - found.keys()):
        raise ConfigError(
            f"{folder} lacks tensor {missing[0]!r} ({len(missing)} of {len(expected)} missing); "
            "config.json and weights are not from the same model, or it was not fetched completely"
        )
    for name, (path, info) in found.items():
        if name in expected:
            _check_tensor(f"{path}: tensor {name!r}", info, expected[name])
        elif not (name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"):
            raise ConfigError(
                f"{path}: tensor {name!r} has no place in a {model.architecture} as config.json "
                "describes it; config.json and weights are not from the same model"
            )


def expected_tensors(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a model's checkpoint."""
    hidden = model.hidden_size
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not model.tie_embeddings:
        tensors["lm_head.weight"] = (model.vocab_size, hidden)
    layer = _layer_tensors(model)
    for index in range(model.num_layers):
        tensors |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return tensors


def _layer_tensors(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = model.hidden_size, model.intermediate_size
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    tensors: dict[str, tuple[int, ...]] = {
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


def _check_tensor(what: str, info: TensorInfo, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise ConfigError(
            f"{what} has shape {list(info.shape)}, config.json makes it {list(shape)}; "
            "config.json and weights are not from the same model"
        )
    if info.dtype not in _FLOAT_DTYPES:
        raise ConfigError(
            f"{what} has dtype {info.dtype}, supported are {', '.join(_FLOAT_DTYPES)}; choose a "
            "model that is not quantised"
        )
