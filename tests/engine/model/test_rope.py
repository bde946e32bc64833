"""The rope table against transformers."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.config import RopeConfig
from engine.model.rope import cos_sin_table, head_order, query_factors

_LLAMA3 = RopeConfig(
    theta=500000.0,
    scaling="llama3",
    factor=32.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position=8192,
)
_LLAMA3_PARAMETERS = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("rope", "parameters"),
    [
        (RopeConfig(theta=1e5), {"rope_type": "default", "rope_theta": 1e5}),
        (
            RopeConfig(scaling="linear", factor=4.0),
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        ),
        (_LLAMA3, _LLAMA3_PARAMETERS),
    ],
)
def test_table_equals_transformers(rope: RopeConfig, parameters: dict[str, object]) -> None:
    config = LlamaConfig(head_dim=128, max_position_embeddings=131072, rope_parameters=parameters)
    positions = torch.tensor([[0, 1, 7, 100, 2047]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
    table = cos_sin_table(rope, head_dim=128, num_positions=2048)[positions[0]]
    torch.testing.assert_close(table[:, :64], cos[0, :, :64], atol=1e-5, rtol=0)
    torch.testing.assert_close(table[:, 64:], sin[0, :, :64], atol=1e-5, rtol=0)


_YARN = RopeConfig(theta=1e6, scaling="yarn", factor=4.0, original_max_position=32768)
_LONGROPE = RopeConfig(
    scaling="longrope",
    factor=32.0,
    original_max_position=4096,
    short_factors=tuple(1.0 + index / 64 for index in range(64)),
    long_factors=tuple(2.0 + index for index in range(64)),
)


@pytest.mark.parametrize(
    ("rope", "num_positions"),
    [
        (_YARN, 100),
        (replace(_YARN, truncate=False, beta_fast=20.0, beta_slow=2.0), 100),
        (_LONGROPE, 4096),
        (_LONGROPE, 4097),
        (RopeConfig(scaling="dynamic", factor=2.0, original_max_position=2048), 2048),
        (RopeConfig(scaling="dynamic", factor=2.0, original_max_position=2048), 6000),
        (RopeConfig(scaling="proportional", factor=8.0, rotary_dim=32), 100),
    ],
)
def test_frequencies_equal_those_of_transformers(rope: RopeConfig, num_positions: int) -> None:
    parameters = {
        "rope_type": rope.scaling,
        "rope_theta": rope.theta,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_position,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "truncate": rope.truncate,
        "short_factor": list(rope.short_factors),
        "long_factor": list(rope.long_factors),
        "partial_rotary_factor": rope.rotary_dim / 128 if rope.rotary_dim else 1.0,
    }
    config = LlamaConfig(head_dim=128, max_position_embeddings=2048, rope_parameters=parameters)
    make = ROPE_INIT_FUNCTIONS[rope.scaling]
    frequencies, _ = make(config, torch.device("cpu"), seq_len=num_positions)
    expected = torch.outer(torch.arange(100.0), frequencies).cos()
    table = cos_sin_table(rope, 128, num_positions)
    assert table.shape == (num_positions, 128)
    torch.testing.assert_close(table[:100, :64], expected[:, :64], atol=1e-4, rtol=0)


def test_pairs_that_do_not_turn_keep_their_length() -> None:
    rope = RopeConfig(rotary_dim=8, attention_factor=1.5)
    cos, sin = cos_sin_table(rope, 32, 5).chunk(2, dim=1)
    assert (cos[:, 4:] == 1.0).all()
    assert (sin[:, 4:] == 0.0).all()
    assert cos[0, :4].tolist() == [1.5] * 4


def test_heads_are_laid_out_in_halves_that_turn_together() -> None:
    assert head_order(RopeConfig(), 8) is None
    assert head_order(RopeConfig(is_interleaved=True), 8) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert head_order(RopeConfig(rotary_dim=4), 8) == [0, 1, 4, 5, 2, 3, 6, 7]
    neighbours = RopeConfig(rotary_dim=4, is_interleaved=True)
    assert head_order(neighbours, 8) == [0, 2, 4, 5, 1, 3, 6, 7]
    assert head_order(RopeConfig(rotary_dim=4, scaling="proportional"), 8) is None


def test_queries_grow_beyond_the_trained_context_only() -> None:
    rope = RopeConfig(query_growth=0.1, original_max_position=16)
    assert query_factors(rope, 16) is None
    assert query_factors(RopeConfig(), 100) is None
    factors = query_factors(rope, 40)
    assert factors is not None
    assert (factors[:16] == 1.0).all()
    assert factors[35].item() == pytest.approx(1 + 0.1 * math.log(3))
