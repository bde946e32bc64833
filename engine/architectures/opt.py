"""OPT as transformers publishes it (arXiv:2205.01068)."""

from engine.architectures.architecture import Architecture, Tensors
from engine.architectures.fields import Json, flag, head_dim_of, require, size
from engine.config import ModelConfig
from engine.errors import ConfigError

# rows of the position table before that of position 0
POSITION_OFFSET = 2
_ROOT = "model.decoder"
# torch's default, which config.json does not repeat
_NORM_EPS = 1e-5


def _parse(config: Json) -> ModelConfig:
    require(config, "activation_function", "relu")
    for field in ("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"):
        require(config, field, True)
    norm_first = flag(config, "do_layer_norm_before", True)
    if norm_first and flag(config, "_remove_final_layer_norm"):
        raise ConfigError("_remove_final_layer_norm is not supported with do_layer_norm_before")
    hidden_size = size(config, "hidden_size", 768)
    num_heads = size(config, "num_attention_heads", 12)
    return ModelConfig(
        architecture="OPTForCausalLM",
        vocab_size=size(config, "vocab_size", 50272),
        hidden_size=hidden_size,
        embedding_size=size(config, "word_embed_proj_dim", hidden_size),
        intermediate_size=size(config, "ffn_dim", 3072),
        num_layers=size(config, "num_hidden_layers", 12),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim_of(hidden_size, num_heads),
        max_position=size(config, "max_position_embeddings", 2048),
        norm_eps=_NORM_EPS,
        norm_first=norm_first,
        attention_bias=True,
        output_bias=True,
        tie_embeddings=True,
    )


def _tensors(model: ModelConfig) -> Tensors:
    hidden, width = model.hidden_size, model.embedding_size
    tensors: Tensors = {
        "embed_tokens.weight": (model.vocab_size, width),
        "embed_positions.weight": (model.max_position + POSITION_OFFSET, hidden),
    }
    if width != hidden:
        tensors |= {"project_in.weight": (hidden, width), "project_out.weight": (width, hidden)}
    if model.norm_first:
        tensors |= {"final_layer_norm.weight": (hidden,), "final_layer_norm.bias": (hidden,)}
    layer = _layer_tensors(model)
    for index in range(model.num_layers):
        tensors |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return {f"{_ROOT}.{name}": shape for name, shape in tensors.items()}


def _layer_tensors(model: ModelConfig) -> Tensors:
    hidden, inner = model.hidden_size, model.intermediate_size
    matrices: Tensors = {
        **{f"self_attn.{name}_proj": (hidden, hidden) for name in ("q", "k", "v", "out")},
        "fc1": (inner, hidden),
        "fc2": (hidden, inner),
    }
    norms: Tensors = {f"{name}_layer_norm": (hidden,) for name in ("self_attn", "final")}
    weights = {f"{name}.weight": shape for name, shape in (matrices | norms).items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in (matrices | norms).items()}
    return weights | biases


def _canonical_name(name: str) -> str:
    """Checkpoints of the bare decoder lack the prefix `model.`."""
    return f"model.{name}" if name.startswith("decoder.") else name


def _is_redundant(model: ModelConfig, name: str) -> bool:
    """Whether it is the copy of the embedding that is the head."""
    return model.tie_embeddings and name == "lm_head.weight"


OPT = Architecture(
    model_type="opt",
    eos_token_id=2,
    parse=_parse,
    tensors=_tensors,
    canonical_name=_canonical_name,
    is_redundant=_is_redundant,
)
