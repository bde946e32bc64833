"""The table of what is served, docs/models.md: `python -m engine.architectures.reference`."""

import sys
from collections.abc import Iterator

from engine.architectures.architecture import Architecture
from engine.architectures.layer_pattern import LayerPattern
from engine.architectures.registry import ARCHITECTURES, WRAPPERS
from engine.architectures.rotary import KINDS
from engine.architectures.weights import FUSED
from engine.config import ModelSpec

_HEAD = """\
# Models

Made by `python -m engine.architectures.reference > docs/models.md` from the rows of
`engine/architectures`. Each row is tested against transformers, see
`tests/engine/model/members.py`.

A model is served if its `config.json` names one of these architectures, in transformers' own form,
and its weights are float16, bfloat16 or float32. What a file says beyond what is known here is
refused by name, because it might change what the model computes.

| architecture | model type | beside LLaMA |
|---|---|---|
"""

_TAIL = """
Rotary embeddings, in files of all versions of transformers:
{kinds};
on all or on the first dimensions of a head. `dynamic` and `longrope` depend on the length of a
sequence in transformers; here they are those of the longest one (`max_model_len`), since cached
keys must agree with later ones.

Of models with images the text part is served, and requests with images are refused:
{wrappers}.

Mixtures of experts are shared out between ranks by the rows of each expert, or by whole experts
where those rows are few.

Layers with a sliding window keep only the blocks that it reaches. Models that have such layers have
no pinned prefixes, no prefix cache in the swap space and none of the paper's baselines.

Not served: quantised weights, latent attention, recurrent layers.
"""

_NORMS = {
    "post": "norms behind attention and feed-forward network",
    "sandwich": "norms before and behind attention and feed-forward network",
}
_HEADS = {"head": "each head", "all": "all heads at once"}


def table() -> str:
    """The page in Markdown."""
    rows = "".join(map(_row, ARCHITECTURES.values()))
    tail = _TAIL.format(
        kinds=", ".join(f"`{kind}`" for kind in KINDS),
        wrappers=" and ".join(f"`{name}`" for name in WRAPPERS),
    )
    return _HEAD + rows + tail


def _row(architecture: Architecture) -> str:
    differences = "; ".join(_differences(architecture)) or "-"
    return f"| `{architecture.name}` | `{architecture.model_type}` | {differences} |\n"


def _differences(architecture: Architecture) -> Iterator[str]:
    if architecture.pattern is None:
        yield "added positions instead of rope"
    else:
        yield from _of_layers(architecture.pattern)
    if "partial_rotary_factor" in architecture.defaults:
        yield "rope on a part of each head"
    yield from _of_spec(architecture.spec)
    if architecture.activations[0] != "silu":
        yield "ReLU" if architecture.activations[0] == "relu" else "GELU"
    if any(tensor in architecture.names for tensor in FUSED):
        yield "fused matrices"
    if architecture.listed:
        yield architecture.listed


def _of_layers(pattern: LayerPattern) -> Iterator[str]:
    if pattern.full_every is not None:
        few = f", 1 layer in {pattern.full_every} without" if pattern.full_every else ""
        yield f"sliding windows where the file has them{few}"
    if pattern.window_theta:
        yield "another rope on window layers"
    if pattern.nope_every:
        yield f"1 layer in {pattern.nope_every} without rope"
    if pattern.turns_windows:
        yield "no rope on layers without a window"
    if pattern.is_interleaved:
        yield "rope turns dimensions beside each other"


def _of_spec(spec: ModelSpec) -> Iterator[str]:
    if spec.norm == "layer":
        yield "layer norms"
    if spec.norms in _NORMS:
        yield _NORMS[spec.norms]
    if spec.norm_gain:
        yield f"norms times {spec.norm_gain:g} + weight"
    if spec.qk_norm in _HEADS:
        yield f"norms of queries and keys, of {_HEADS[spec.qk_norm]}"
    if spec.qkv_bias:
        yield "biases of queries, keys and values"
    if spec.layers[0].mlp == "plain":
        yield "no gate"


if __name__ == "__main__":
    sys.stdout.write(table())
