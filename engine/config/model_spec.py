"""What a decoder computes: the differences between families of models, as data.

`engine.architectures` makes a `ModelSpec` of a config.json, `engine.model.decoder` runs it. The
defaults are those of LLaMA.
"""

from dataclasses import dataclass
from typing import Literal

RopeScaling = Literal["none", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]
Norms = Literal["pre", "post", "sandwich", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        rotary_dim: dimensions of a head that turn, the first ones; 0 for all.
        is_interleaved: whether dimensions 2i and 2i + 1 of a head turn together as published, not
            i and i + rotary_dim / 2.
        scaling: how positions beyond the trained context are mapped.
        factor: stretch of the context.
        original_max_position: tokens of the trained context; all scalings but `linear` and
            `proportional`.
        low_freq_factor, high_freq_factor: `llama3` only.
        beta_fast, beta_slow, truncate: `yarn` only.
        short_factors, long_factors: `longrope` only, one divisor for each frequency, up to the
            trained context and beyond it.
        attention_factor: factor of queries and keys, `yarn` and `longrope` only.
        query_growth: factor of queries is 1 + query_growth * ln(1 + position //
            original_max_position) (Llama 4, Ministral 3); 0 for none.
    """

    theta: float = 10000.0
    rotary_dim: int = 0
    is_interleaved: bool = False
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_max_position: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    query_growth: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """A mixture of experts: a router sends each token to a few of many feed-forward networks.

    Attributes:
        num_experts, top_k: how many there are, and how many a token goes to.
        intermediate_size: of each.
        score, renormalises, scale, num_groups, num_top_groups: see `kernels.experts.Routing`.
        has_choice_bias: whether experts are chosen by scores plus a bias.
        has_biases: whether router and experts have biases.
        limit: see `kernels.experts.ExpertWeights`.
        packing: how their matrices are published; `mxfp4` is unpacked when it is read.
        shared_size: intermediate size of a network beside them that every token goes to; 0 for
            none.
        gates_shared: whether a sigmoid of the token gates that network.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalises: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_top_groups: int = 1
    has_choice_bias: bool = False
    has_biases: bool = False
    limit: float = 0.0
    packing: Literal["none", "mxfp4"] = "none"
    shared_size: int = 0
    gates_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What may differ from layer to layer.

    Attributes:
        window: tokens up to itself that a token attends to; 0 for all.
        rope: which of `ModelSpec.ropes` turns queries and keys; None for no rotation.
        mlp: whether a third matrix gates the feed-forward network, or it is a mixture of experts.
    """

    window: int = 0
    rope: int | None = 0
    mlp: Literal["gated", "plain", "experts"] = "gated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What all layers have in common, and the layers.

    Attributes:
        layers: in order; fewer than there are repeat.
        ropes: the rotary embeddings that layers choose from.
        position_rows: rows of a table of added positions before that of position 0 (OPT 2, GPT-2
            0); None for models without such a table.
        norm: by the root of the mean square, or by mean and variance with gain and shift.
        norms: where f, attention and then the feed-forward network, is normed.
            pre: x + f(norm(x)). post: x + norm(f(x)). sandwich: x + norm(f(norm(x))). last:
            norm(x + f(x)), and none behind all layers.
        norm_gain: what is added to the stored gains of norms of layers and heads.
        qk_norm: whether queries and keys are normed before they turn, each head by itself, or all
            heads of a token at once.
        qkv_bias, output_bias, feed_bias: which linear layers have biases.
        activation: of the feed-forward network; `gelu` is the tanh form.
        attention_scale: factor of the scores; 0 for head_dim ** -0.5.
        attention_softcap: scores s become cap * tanh(s / cap); 0 for none.
        has_sinks: whether each query head has one score more, of nothing (gpt-oss).
        logit_softcap: the same for logits.
        embedding_multiplier: factor of embeddings.
        rounds_multiplier: whether that is rounded to the model's dtype first.
        residual_multiplier: factor of what each layer adds.
        logit_multiplier: factor of logits.
        experts: of the layers that have such; None where no layer has.
    """

    layers: tuple[LayerSpec, ...] = (LayerSpec(),)
    ropes: tuple[RopeConfig, ...] = (RopeConfig(),)
    position_rows: int | None = None
    norm: Literal["rms", "layer"] = "rms"
    norms: Norms = "pre"
    norm_gain: float = 0.0
    qk_norm: Literal["none", "head", "all"] = "none"
    qkv_bias: bool = False
    output_bias: bool = False
    feed_bias: bool = False
    activation: Literal["silu", "gelu", "relu"] = "silu"
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    has_sinks: bool = False
    logit_softcap: float = 0.0
    embedding_multiplier: float = 1.0
    rounds_multiplier: bool = False
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    experts: ExpertsSpec | None = None

    def layer(self, index: int) -> LayerSpec:
        """The layer at a place."""
        return self.layers[index % len(self.layers)]

    def window(self, index: int, num_positions: int) -> int:
        """The window of a layer for sequences of so many tokens; 0 where it holds them all."""
        window = self.layer(index).window
        return window if window < num_positions else 0
