"""Reads the rotary settings of config.json, in all spellings that are published.

`rope_theta` and `rope_scaling`; version 5's `rope_parameters`; and those nested by kind of layer.
The meaning of each kind: `modeling_rope_utils` of transformers 5.24.
"""

import math
from dataclasses import replace

from engine.architectures.fields import Fields, Json
from engine.config import RopeConfig
from engine.errors import ConfigError

FULL, WINDOW = "full_attention", "sliding_attention"
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")


def read_ropes(
    fields: Fields, head_dim: int, max_position: int, *, is_interleaved: bool, window_theta: float
) -> dict[str, RopeConfig]:
    """Read the rotary embedding of each kind of layer.

    Args:
        is_interleaved: how the family pairs dimensions.
        window_theta: base of the frequencies of window layers, which are not scaled then, where
            the file does not say; 0 where they have the same embedding as others.

    Raises:
        ConfigError: if a kind or a field of it is not known.
    """
    given = {name: fields.inner(name) for name in ("rope_scaling", "rope_parameters")}
    published = given["rope_scaling"] or given["rope_parameters"]
    theta = fields.number("rope_theta", 10000.0)
    window_theta = window_theta and fields.number("rope_local_base_freq", window_theta)
    nested = any(kind in published for kind in (FULL, WINDOW))

    def read(kind: str) -> RopeConfig:
        scaling, base = published, theta
        if nested:
            scaling = published.get(kind) or {}
        elif kind == WINDOW and window_theta:
            scaling = {}
        if kind == WINDOW and window_theta:
            base = window_theta
        if not isinstance(scaling, dict):
            raise ConfigError(f"rope_parameters of {kind} {scaling!r} is not an object")
        return _read_rope(fields, scaling, base, head_dim, max_position, is_interleaved)

    return {kind: read(kind) for kind in (FULL, WINDOW)}


def _read_rope(
    fields: Fields,
    scaling: Json,
    theta: float,
    head_dim: int,
    max_position: int,
    is_interleaved: bool,
) -> RopeConfig:
    inner = Fields(scaling, what="rope_scaling")
    share = inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if share > 1.0:
        raise ConfigError(f"partial_rotary_factor is {share}, expected at most 1")
    kind = _kind(inner)
    rotary_dim = int(head_dim * share)
    plain = RopeConfig(
        theta=inner.number("rope_theta", theta),
        rotary_dim=0 if rotary_dim == head_dim else rotary_dim,
        is_interleaved=is_interleaved,
    )
    rope = _scaled(plain, kind, inner, fields, head_dim, max_position)
    inner.refuse_unread()
    if rotary_dim < 2 or rotary_dim % 2:
        raise ConfigError(f"{rotary_dim} of {head_dim} dimensions of a head cannot turn in pairs")
    return rope


def _kind(inner: Fields) -> str:
    # the name was `type` once, and both are given by some files
    kind = inner.value("type", "default")
    kind = inner.value("rope_type", kind)
    kind = {"su": "longrope"}.get(kind, kind)
    if kind == "yarn" and "short_factor" in inner:
        kind = "longrope"
    if kind not in KINDS:
        raise ConfigError(f"rope scaling {kind!r} is not supported, only {', '.join(KINDS[1:])}")
    return str(kind)


def _scaled(
    rope: RopeConfig, kind: str, inner: Fields, fields: Fields, head_dim: int, max_position: int
) -> RopeConfig:
    if kind == "default":
        return rope
    if kind == "linear":
        return replace(rope, scaling="linear", factor=inner.number("factor"))
    if kind == "dynamic":
        factor = inner.number("factor")
        return replace(rope, scaling="dynamic", factor=factor, original_max_position=max_position)
    if kind == "proportional":
        return replace(rope, scaling="proportional", factor=inner.number("factor", 1.0))
    original = _original(inner, fields, max_position)
    if kind == "llama3":
        return replace(
            rope,
            scaling="llama3",
            factor=inner.number("factor"),
            low_freq_factor=inner.number("low_freq_factor"),
            high_freq_factor=inner.number("high_freq_factor"),
            original_max_position=original,
        )
    factor = inner.number("factor", max_position / original)
    if kind == "yarn":
        return _yarn(replace(rope, factor=factor, original_max_position=original), inner)
    num_frequencies = (rope.rotary_dim or head_dim) // 2
    growth = math.log(factor) / math.log(original) if factor > 1 else 0.0
    return replace(
        rope,
        scaling="longrope",
        factor=factor,
        original_max_position=original,
        short_factors=inner.numbers("short_factor", num_frequencies),
        long_factors=inner.numbers("long_factor", num_frequencies),
        attention_factor=inner.number("attention_factor", math.sqrt(1 + growth)),
    )


def _original(inner: Fields, fields: Fields, max_position: int) -> int:
    """The trained context; some files name it beside the rotary settings, which counts first."""
    beside = fields.value("original_max_position_embeddings")
    within = inner.size("original_max_position_embeddings", max_position)
    return within if beside is None else fields.size("original_max_position_embeddings")


def _yarn(rope: RopeConfig, inner: Fields) -> RopeConfig:
    # given by Ministral 3; the file says it again
    inner.value("max_position_embeddings")
    scale, scale_of_all = inner.value("mscale"), inner.value("mscale_all_dim")
    attention_factor = _yarn_growth(rope.factor)
    if scale and scale_of_all:
        scales = inner.number("mscale"), inner.number("mscale_all_dim")
        attention_factor = _yarn_growth(rope.factor, scales[0]) / _yarn_growth(
            rope.factor, scales[1]
        )
    growth = inner.value("llama_4_scaling_beta")
    return replace(
        rope,
        scaling="yarn",
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        truncate=inner.flag("truncate", True),
        attention_factor=inner.number("attention_factor", attention_factor),
        query_growth=inner.number("llama_4_scaling_beta") if growth else 0.0,
    )


def _yarn_growth(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
