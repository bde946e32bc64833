"""GPT-2 as transformers publishes it, and shapes of GPT-3 in the same form (arXiv:2005.14165)."""

import re

from engine.architectures.architecture import Architecture, Tensors
from engine.architectures.fields import Json, head_dim_of, number, require, size
from engine.config import ModelConfig

_ROOT = "transformer"
# causal masks that older checkpoints carry along
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)$")
_NEW_NAMES = {"max_position_embeddings": "n_positions", "hidden_size": "n_embd",
              "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}  # fmt: skip
_BOUNDARY_TOKEN = 50256


def _parse(config: Json) -> ModelConfig:
    require(config, "activation_function", "gelu_new")
    require(config, "scale_attn_weights", True)
    require(config, "scale_attn_by_inverse_layer_idx", False)
    require(config, "tie_word_embeddings", True)
    require(config, "add_cross_attention", False)
    config = {_NEW_NAMES.get(name, name): value for name, value in config.items()}
    hidden_size, num_heads = size(config, "n_embd", 768), size(config, "n_head", 12)
    return ModelConfig(
        architecture="GPT2LMHeadModel",
        vocab_size=size(config, "vocab_size", 50257),
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=size(config, "n_inner", 4 * hidden_size),
        num_layers=size(config, "n_layer", 12),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim_of(hidden_size, num_heads),
        max_position=size(config, "n_positions", 1024),
        norm_eps=number(config, "layer_norm_epsilon", 1e-5),
        attention_bias=True,
        output_bias=True,
        tie_embeddings=True,
    )


def _tensors(model: ModelConfig) -> Tensors:
    hidden = model.hidden_size
    tensors: Tensors = {
        "wte.weight": (model.vocab_size, hidden),
        "wpe.weight": (model.max_position, hidden),
        "ln_f.weight": (hidden,),
        "ln_f.bias": (hidden,),
    }
    layer = _layer_tensors(model)
    for index in range(model.num_layers):
        tensors |= {f"h.{index}.{name}": shape for name, shape in layer.items()}
    return {f"{_ROOT}.{name}": shape for name, shape in tensors.items()}


def _layer_tensors(model: ModelConfig) -> Tensors:
    """Matrices are stored transposed, inputs first (Conv1D)."""
    hidden, inner = model.hidden_size, model.intermediate_size
    matrices: Tensors = {
        "attn.c_attn": (hidden, 3 * hidden),
        "attn.c_proj": (hidden, hidden),
        "mlp.c_fc": (hidden, inner),
        "mlp.c_proj": (inner, hidden),
        "ln_1": (hidden,),
        "ln_2": (hidden,),
    }
    weights = {f"{name}.weight": shape for name, shape in matrices.items()}
    return weights | {f"{name}.bias": shape[-1:] for name, shape in matrices.items()}


def _canonical_name(name: str) -> str:
    """The checkpoints that were published first lack the prefix `transformer.`."""
    return name if name.startswith((f"{_ROOT}.", "lm_head.")) else f"{_ROOT}.{name}"


def _is_redundant(model: ModelConfig, name: str) -> bool:
    """Whether it is a mask, or the copy of the embedding that is the head."""
    is_copy = model.tie_embeddings and name == "lm_head.weight"
    return is_copy or _MASK.fullmatch(name.removeprefix(f"{_ROOT}.")) is not None


GPT2 = Architecture(
    model_type="gpt2",
    eos_token_id=_BOUNDARY_TOKEN,
    parse=_parse,
    tensors=_tensors,
    canonical_name=_canonical_name,
    is_redundant=_is_redundant,
)
