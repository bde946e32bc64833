"""The weights of a decoder by role, their shapes, and where a checkpoint keeps them.

A role is what a weight is for, the same in all families; its shape follows from the model. A table
of names per family says which tensor holds it; several roles may lie behind each other in one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.config import ModelConfig

# names and shapes of the tensors of a checkpoint
Tensors = dict[str, tuple[int, ...]]
# role -> name of the tensor without its suffix; {} stands for the layer
Names = Mapping[str, str]
# role that names a tensor -> roles whose rows lie in it, in order
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
_TENSOR_OF = {role: tensor for tensor, roles in FUSED.items() for role in roles}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlace:
    """Where a weight or bias lies.

    Attributes:
        name: of the stored tensor.
        shape: of the stored tensor, outputs first unless `is_transposed`.
        start: of the weight's outputs among those of the tensor.
        count: of the weight's outputs.
        is_transposed: whether the tensor is stored inputs first.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    count: int
    is_transposed: bool = False


class StoredWeights:
    """Where the weights of one model are."""

    def __init__(self, model: ModelConfig, names: Names, *, is_transposed: bool = False) -> None:
        """Args: is_transposed: whether the matrices of layers are stored inputs first."""
        self._model = model
        self._names = names
        self._is_transposed = is_transposed

    def place(self, role: str, suffix: str = "weight", layer: int | None = None) -> WeightPlace:
        """Find a weight or bias.

        Args:
            role: see `outer_shapes` and `layer_shapes`.
            suffix: `weight`, `bias`, or none for a tensor that is named by its role only.
            layer: None for a role outside of layers.
        """
        shapes = outer_shapes(self._model) if layer is None else layer_shapes(self._model, layer)
        tensor = role if role in self._names else _TENSOR_OF.get(role, role)
        parts = FUSED.get(tensor, (role,))
        counts = {part: shapes[part][0] for part in parts}
        tail = shapes[role][1:] if suffix == "weight" else ()
        shape = (sum(counts.values()), *tail)
        is_transposed = self._is_transposed and layer is not None and len(shape) == 2
        return WeightPlace(
            name=".".join(filter(None, (self._names[tensor].format(layer), suffix))),
            shape=shape[::-1] if is_transposed else shape,
            start=sum(counts[part] for part in parts[: parts.index(role)]),
            count=counts[role],
            is_transposed=is_transposed,
        )

    def tensors(self) -> Tensors:
        """Names and shapes of all stored tensors."""
        places = [self.place(*where) for where in self._all()]
        return {place.name: place.shape for place in places}

    def _all(self) -> Iterator[tuple[str, str, int | None]]:
        layers: list[int | None] = [None, *range(self._model.num_layers)]
        for layer in layers:
            shapes = (
                outer_shapes(self._model) if layer is None else layer_shapes(self._model, layer)
            )
            for role in shapes:
                yield role, "" if role == "sinks" else "weight", layer
                if has_bias(self._model, role):
                    yield role, "bias", layer


def outer_shapes(model: ModelConfig) -> Tensors:
    """Roles outside of layers -> shapes of their weights."""
    hidden, width, spec = model.hidden_size, model.embedding_width, model.spec
    shapes: Tensors = {"embedding": (model.vocab_size, width)}
    if spec.position_rows is not None:
        shapes["positions"] = (model.max_position + spec.position_rows, hidden)
    if width != hidden:
        shapes |= {"project_in": (hidden, width), "project_out": (width, hidden)}
    if spec.norms != "last":
        shapes["final_norm"] = (hidden,)
    if not model.tie_embeddings:
        shapes["head"] = (model.vocab_size, width)
    return shapes


def layer_shapes(model: ModelConfig, layer: int) -> Tensors:
    """Roles in a layer -> shapes of their weights: outputs, then inputs; of norms their width."""
    hidden, inner, spec = model.hidden_size, model.intermediate_size, model.spec
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    shapes: Tensors = {
        "q": (q_size, hidden),
        "k": (kv_size, hidden),
        "v": (kv_size, hidden),
        "output": (hidden, q_size),
    }
    if spec.layer(layer).mlp == "gated":
        shapes["gate"] = (inner, hidden)
    shapes |= {"up": (inner, hidden), "down": (hidden, inner)}
    shapes |= dict.fromkeys(NORM_ROLES[spec.norms], (hidden,))
    if spec.qk_norm == "head":
        shapes |= {"q_norm": (model.head_dim,), "k_norm": (model.head_dim,)}
    elif spec.qk_norm == "all":
        shapes |= {"q_norm": (q_size,), "k_norm": (kv_size,)}
    if spec.has_sinks:
        shapes["sinks"] = (model.num_heads,)
    return shapes


def has_bias(model: ModelConfig, role: str) -> bool:
    """Whether a role has a bias beside its weight."""
    spec = model.spec
    if role in ("q", "k", "v"):
        return spec.qkv_bias
    if role == "output":
        return spec.output_bias
    if role in ("gate", "up", "down"):
        return spec.feed_bias
    return spec.norm == "layer" and role in _HIDDEN_NORMS


_BEFORE, _AFTER = ("attention_norm", "feed_norm"), ("attention_post_norm", "feed_post_norm")
NORM_ROLES = {"pre": _BEFORE, "last": _AFTER, "post": _AFTER, "sandwich": (*_BEFORE, *_AFTER)}
_HIDDEN_NORMS = ("final_norm", *_BEFORE, *_AFTER)
