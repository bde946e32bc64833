"""What the engine has to know of a kind of model: a row of data for each."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from engine.architectures.fields import Fields, Json
from engine.architectures.layer_pattern import LayerPattern
from engine.architectures.weights import Names, StoredWeights, Tensors
from engine.config import ModelConfig, ModelSpec, RopeConfig
from engine.errors import ConfigError

_ACTIVATIONS: dict[str, Literal["silu", "gelu", "relu"]] = {
    "silu": "silu", "relu": "relu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu",
}  # fmt: skip
# parts of a model that are not text, and layers that only training uses
_NOT_TEXT = (
    "vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "audio_tower.", "mtp.",
)  # fmt: skip
# spellings of the text part of a model with images
_TEXT_PREFIXES = {"model.language_model.": "model.", "language_model.": ""}
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def unchanged(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """Read no field of its own: a family whose row says all."""
    return spec


def attention_biased(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """Read whether all matrices of attention have biases."""
    has_bias = fields.flag("attention_bias")
    return replace(spec, qkv_bias=has_bias, output_bias=has_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One row of `engine.architectures.registry`.

    Attributes:
        name: as `architectures` in config.json has it.
        model_type: the name that config.json gives when it names no architecture.
        eos_token_ids: ends of a sequence when the files name none, as in transformers.
        names: role -> stored tensor, see `engine.architectures.weights`.
        is_transposed: whether the matrices of layers are stored inputs first.
        bare_prefix: what the names of tensors lack in checkpoints of the model without its head.
        defaults: values of fields that are missing, as in transformers.
        spellings: common name of a field -> the family's own.
        activations: spellings of the activation of the feed-forward network.
        spec: what every member of the family computes.
        pattern: how its layers alternate; None for models without rope.
        refine: reads the family's own fields.
        packings: kinds of `quantization_config` that are read; others are refused.
        predicts_ahead: whether checkpoints have layers behind the last one, which predict further
            tokens and are not served.
        ships_code: whether folders of the publisher name code that is older than transformers' own
            and computes the same; it is never run.
        listed: what `refine` reads, in words for docs/models.md.
    """

    name: str
    model_type: str
    eos_token_ids: tuple[int, ...] = ()
    names: Names
    is_transposed: bool = False
    bare_prefix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=lambda: {"norm_eps": "rms_norm_eps"})
    activations: tuple[str, ...] = ("silu",)
    spec: ModelSpec = field(default_factory=ModelSpec)
    pattern: LayerPattern | None = field(default_factory=LayerPattern)
    refine: Callable[[Fields, ModelSpec], ModelSpec] = unchanged
    packings: tuple[str, ...] = ()
    predicts_ahead: bool = False
    ships_code: bool = False
    listed: str = ""

    def parse(self, config: Json) -> ModelConfig:
        """Read config.json, all but the ids that end a sequence.

        Raises:
            ConfigError: naming a field that is wrong, or that says what is not supported.
        """
        fields = Fields(config, self.defaults, self.spellings)
        fields.require("hidden_act", *self.activations)
        hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
        spec = replace(self.spec, activation=_ACTIVATIONS[self.activations[0]])
        model = ModelConfig(
            architecture=self.name,
            vocab_size=fields.size("vocab_size"),
            hidden_size=hidden_size,
            embedding_size=fields.size("word_embed_proj_dim", hidden_size),
            intermediate_size=fields.size("intermediate_size", 4 * hidden_size),
            num_layers=fields.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=_head_dim(fields, hidden_size, num_heads),
            max_position=fields.size("max_position_embeddings"),
            norm_eps=fields.number("norm_eps"),
            tie_embeddings=fields.flag("tie_word_embeddings"),
            spec=self.refine(fields, spec),
        )
        _check_heads(model)
        if self.pattern is not None:
            model = self.pattern.apply(fields, model)
        fields.refuse_unread()
        return _within_reach(model)

    def tensors(self, model: ModelConfig) -> Tensors:
        """Canonical names and shapes of what a checkpoint must hold."""
        return self.stored(model).tensors()

    def stored(self, model: ModelConfig) -> StoredWeights:
        """Where a checkpoint keeps the weights."""
        return StoredWeights(model, self.names, is_transposed=self.is_transposed)

    def canonical_name(self, name: str) -> str:
        """The name of a stored tensor as `tensors` spells it; several spellings are published."""
        for prefix, instead in _TEXT_PREFIXES.items():
            if name.startswith(prefix):
                name = instead + name.removeprefix(prefix)
        root = self.names["embedding"].partition(".")[0]
        is_bare = not name.startswith((f"{root}.", f"{self.names['head']}."))
        if not is_bare:
            return name
        inside = (stored.partition(".")[2] for stored in self.names.values())
        is_inside = name.partition(".")[0] in {stored.partition(".")[0] for stored in inside}
        return (self.bare_prefix or f"{root}." * is_inside) + name

    def is_redundant(self, model: ModelConfig, name: str) -> bool:
        """Whether a stored tensor, by its canonical name, repeats what is known or is not text."""
        is_copy = model.tie_embeddings and name == f"{self.names['head']}.weight"
        is_other_part = name.removeprefix("model.").startswith(_NOT_TEXT)
        if self.predicts_ahead and (layer := _LAYER.match(name)):
            is_other_part = int(layer[1]) >= model.num_layers
        return is_copy or is_other_part or name.endswith(_BUFFERS)


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if fields.value("head_dim") is None and hidden_size % num_heads:
        raise ConfigError(f"hidden size {hidden_size} is not a multiple of {num_heads} heads")
    return fields.size("head_dim", hidden_size // num_heads)


def _check_heads(model: ModelConfig) -> None:
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            f"num_attention_heads {model.num_heads} is not a multiple of "
            f"num_key_value_heads {model.num_kv_heads}"
        )
    if model.head_dim % 2:
        raise ConfigError(f"head_dim {model.head_dim} is odd")


def _within_reach(model: ModelConfig) -> ModelConfig:
    """The longest context that can be served: ropes stretch it."""
    reach = model.max_position
    if any(layer.rope is not None for layer in model.spec.layers):
        reach = min(_stretched(rope, reach) for rope in model.spec.ropes)
    return replace(model, max_position=reach)


def _stretched(rope: RopeConfig, max_position: int) -> int:
    """Files differ in whether `max_position_embeddings` is the stretched length already."""
    if rope.scaling in ("yarn", "dynamic"):
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position
