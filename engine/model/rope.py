"""The table of rotary position embeddings (arXiv:2104.09864)."""

import math

import torch
from torch import Tensor

from engine.config import RopeConfig


def cos_sin_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """Cosines, then sines of head_dim / 2 angles -> [num_positions, head_dim] float32."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, _frequencies(rope, head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair -> [head_dim / 2] float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        return _stretch_slow(rope, frequencies)
    return frequencies


def _stretch_slow(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Slow down the pairs that turn less than once in the original context, with a smooth passage.

    Source: https://github.com/meta-llama/llama-models, scaling of Llama 3.1.
    """
    turns = rope.original_max_position * frequencies / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / rope.factor)
