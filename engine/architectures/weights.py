"""The weights of a decoder by role, their shapes, and where a checkpoint keeps them.

A role is what a weight is for, the same in all families; its shape follows from the model. A table
of names per family says which tensor holds it; several roles may lie behind each other in one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from engine.config import ModelConfig

# names and shapes of the tensors of a checkpoint
Tensors = dict[str, tuple[int, ...]]
# role -> name of the tensor without its suffix; {} stands for the layer, the second for the expert
Names = Mapping[str, str]
# role that names a tensor -> roles whose rows lie in it, in order
FUSED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
# roles that each expert of a layer has a tensor for
EXPERT_ROLES = ("expert_gate", "expert_up", "expert_down")
# roles of tensors of all experts of a layer
STACK_ROLES = ("gate_up_stack", "down_stack")
# suffixes of the names of such tensors that hold bytes, and of all by `ExpertsSpec.packing`
PACKED_SUFFIXES = ("_blocks", "_scales")
_STACK_SUFFIXES = {"none": ("", "_bias"), "mxfp4": (*PACKED_SUFFIXES, "_bias")}
# suffix of the tensor that experts are chosen by, beside the router's weight
CHOICE_BIAS = "e_score_correction_bias"
_BEFORE, _AFTER = ("attention_norm", "feed_norm"), ("attention_post_norm", "feed_post_norm")
# `ModelSpec.norms` -> roles of the norms of a layer
NORM_ROLES = {"pre": _BEFORE, "last": _AFTER, "post": _AFTER, "sandwich": (*_BEFORE, *_AFTER)}
_HIDDEN_NORMS = ("final_norm", *_BEFORE, *_AFTER)
# numbers that share a scale, and bytes that hold them (OCP Microscaling Formats, version 1.0)
MXFP4_NUMBERS, MXFP4_BYTES = 32, 16
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
        self._shapes: dict[int | None, Tensors] = {}

    def place(
        self, role: str, suffix: str = "weight", layer: int | None = None, expert: int = 0
    ) -> WeightPlace:
        """Find a weight or bias.

        Args:
            role: see `outer_shapes` and `layer_shapes`.
            suffix: `weight`, the name of a bias, or none for a tensor with the role's name only.
            layer: None for a role outside of layers.
            expert: of `EXPERT_ROLES` only.
        """
        shapes = self._shapes_of(layer)
        tensor = role if role in self._names else _TENSOR_OF.get(role, role)
        parts = FUSED.get(tensor, (role,))
        counts = {part: shapes[part][0] for part in parts}
        tail = shapes[role][1:] if suffix == "weight" else ()
        shape = (sum(counts.values()), *tail)
        is_transposed = self._is_transposed and layer is not None and len(shape) == 2
        return WeightPlace(
            name=".".join(filter(None, (self._names[tensor].format(layer, expert), suffix))),
            shape=shape[::-1] if is_transposed else shape,
            start=sum(counts[part] for part in parts[: parts.index(role)]),
            count=counts[role],
            is_transposed=is_transposed,
        )

    @property
    def has_stacks(self) -> bool:
        """Whether one tensor has the matrices of all experts of a layer."""
        return STACK_ROLES[0] in self._names

    def stack(self, role: str, suffix: str, layer: int) -> WeightPlace:
        """Find a tensor of all experts of a layer, whose outputs are the experts.

        Args:
            role: of `STACK_ROLES`.
            suffix: empty for values [experts, inputs, outputs]; `_bias`, [experts, outputs];
                `_blocks`, [experts, outputs, inputs / 32, 16]; `_scales`, [experts, outputs,
                inputs / 32].
        """
        experts, hidden = self._model.spec.experts, self._model.hidden_size
        assert experts is not None
        inner = experts.intermediate_size
        inputs, outputs = (hidden, 2 * inner) if role == "gate_up_stack" else (inner, hidden)
        groups = inputs // MXFP4_NUMBERS
        shape: tuple[int, ...] = {
            "": (inputs, outputs),
            "_bias": (outputs,),
            "_blocks": (outputs, groups, MXFP4_BYTES),
            "_scales": (outputs, groups),
        }[suffix]
        count = experts.num_experts
        name = self._names[role].format(layer) + suffix
        return WeightPlace(name=name, shape=(count, *shape), start=0, count=count)

    def tensors(self) -> Tensors:
        """Names and shapes of all stored tensors."""
        layers = range(self._model.num_layers)
        places = chain(self._places(None), *map(self._places, layers), *map(self._stacks, layers))
        return {place.name: place.shape for place in places}

    def _places(self, layer: int | None) -> Iterator[WeightPlace]:
        """All weights and biases of a layer, or outside of layers, but the stacks."""
        experts, shapes = self._model.spec.experts, self._shapes_of(layer)
        for role in shapes:
            if self.has_stacks and role in EXPERT_ROLES:
                continue
            for expert in range(num_tensors(self._model, role)):
                yield self.place(role, "" if role == "sinks" else "weight", layer, expert)
                if has_bias(self._model, role):
                    yield self.place(role, "bias", layer, expert)
        if "router" in shapes and experts is not None and experts.has_choice_bias:
            yield self.place("router", CHOICE_BIAS, layer)

    def _stacks(self, layer: int) -> Iterator[WeightPlace]:
        experts = self._model.spec.experts
        if self.has_stacks and self._model.spec.layer(layer).mlp == "experts":
            assert experts is not None
            for role in STACK_ROLES:
                for suffix in _STACK_SUFFIXES[experts.packing]:
                    yield self.stack(role, suffix, layer)

    def _shapes_of(self, layer: int | None) -> Tensors:
        if layer not in self._shapes:
            model = self._model
            shapes = outer_shapes(model) if layer is None else layer_shapes(model, layer)
            self._shapes[layer] = shapes
        return self._shapes[layer]


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
    kind = spec.layer(layer).mlp
    if kind == "experts":
        shapes |= _expert_shapes(model)
    else:
        if kind == "gated":
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


def _expert_shapes(model: ModelConfig) -> Tensors:
    """Of one expert each, and of what there is one of in a layer."""
    hidden, experts = model.hidden_size, model.spec.experts
    assert experts is not None
    inner, shared = experts.intermediate_size, experts.shared_size
    shapes: Tensors = {
        "router": (experts.num_experts, hidden),
        "expert_gate": (inner, hidden),
        "expert_up": (inner, hidden),
        "expert_down": (hidden, inner),
    }
    if shared:
        shapes |= {
            "shared_gate": (shared, hidden),
            "shared_up": (shared, hidden),
            "shared_down": (hidden, shared),
        }
    if experts.gates_shared:
        shapes["shared_switch"] = (1, hidden)
    return shapes


def num_tensors(model: ModelConfig, role: str) -> int:
    """How many tensors of a layer have a role."""
    experts = model.spec.experts
    return experts.num_experts if experts is not None and role in EXPERT_ROLES else 1


def has_bias(model: ModelConfig, role: str) -> bool:
    """Whether a role has a bias beside its weight."""
    spec = model.spec
    if role in ("q", "k", "v"):
        return spec.qkv_bias
    if role == "output":
        return spec.output_bias
    if role in ("gate", "up", "down"):
        return spec.feed_bias
    if role == "router":
        return spec.experts is not None and spec.experts.has_biases
    return spec.norm == "layer" and role in _HIDDEN_NORMS
