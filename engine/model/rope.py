"""The table of rotary position embeddings (arXiv:2104.09864), and how heads are laid out for it.

Kernels turn dimensions i and i + head_dim / 2 of a head together, for all i. Families that turn
fewer, or other pairs, have the rows of their queries and keys permuted when they are loaded: scores
are sums over dimensions in any order.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import RopeConfig


@dataclass(frozen=True, slots=True)
class RopeTable:
    """A rotary embedding on the device.

    Attributes:
        cos_sin: see `cos_sin_table`.
        order: see `head_order`.
        query_factors: see `query_factors`, in the model's dtype.
    """

    cos_sin: Tensor
    order: list[int] | None
    query_factors: Tensor | None

    @classmethod
    def of(cls, rope: RopeConfig, head_dim: int, num_positions: int, like: Tensor) -> "RopeTable":
        """Make the table for sequences of up to `num_positions` tokens.

        Args:
            like: any tensor of the dtype and device of the model.
        """
        factors = query_factors(rope, num_positions)
        return cls(
            cos_sin=cos_sin_table(rope, head_dim, num_positions).to(like.device),
            order=head_order(rope, head_dim),
            query_factors=None if factors is None else factors.to(like),
        )


def cos_sin_table(rope: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """Cosines, then sines of head_dim / 2 angles -> [num_positions, head_dim] float32.

    Pairs that do not turn have the angle 0.

    Args:
        num_positions: tokens of the longest sequence; some embeddings depend on it.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    # a proportional embedding spaces the frequencies as if all of the head turned
    rotary_dim = rope.rotary_dim or head_dim
    span = head_dim if rope.scaling == "proportional" else rotary_dim
    frequencies = _frequencies(rope, span, num_positions)[: rotary_dim // 2]
    angles = torch.outer(positions, frequencies)
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    still = head_dim // 2 - angles.shape[1]
    ones, zeros = cos.new_ones(num_positions, still), sin.new_zeros(num_positions, still)
    return torch.cat((cos, ones, sin, zeros), dim=-1)


def query_factors(rope: RopeConfig, num_positions: int) -> Tensor | None:
    """Factors of queries by position [num_positions, 1] float32; None where all are 1."""
    if not rope.query_growth or num_positions <= rope.original_max_position:
        return None
    periods = torch.arange(num_positions) // rope.original_max_position
    return (1.0 + rope.query_growth * torch.log1p(periods.float()))[:, None]


def head_order(rope: RopeConfig, head_dim: int) -> list[int] | None:
    """Which published dimension of a head comes where; None to leave them as they are."""
    rotary_dim, half = rope.rotary_dim or head_dim, head_dim // 2
    if rope.scaling == "proportional" or (rotary_dim == head_dim and not rope.is_interleaved):
        return None
    turning = range(rotary_dim)
    if rope.is_interleaved:
        firsts, seconds = list(turning[0::2]), list(turning[1::2])
    else:
        firsts, seconds = list(turning[: rotary_dim // 2]), list(turning[rotary_dim // 2 :])
    still = list(range(rotary_dim, head_dim))
    num_firsts = half - len(firsts)
    return firsts + still[:num_firsts] + seconds + still[num_firsts:]


def _frequencies(rope: RopeConfig, rotary_dim: int, num_positions: int) -> Tensor:
    """Radians per position of each pair -> [rotary_dim / 2] float32."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    theta = rope.theta
    if rope.scaling == "dynamic":
        # of the longest sequence: what is cached must agree with what comes
        stretch = max(1.0, num_positions / rope.original_max_position)
        grown = rope.factor * stretch - (rope.factor - 1)
        theta *= grown ** (rotary_dim / (rotary_dim - 2))
    frequencies = 1.0 / theta**exponents
    if rope.scaling in ("linear", "proportional"):
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        return _stretch_slow(rope, frequencies)
    if rope.scaling == "yarn":
        return _stretch_by_range(rope, frequencies, rotary_dim)
    if rope.scaling == "longrope":
        is_long = num_positions > rope.original_max_position
        return frequencies / torch.tensor(rope.long_factors if is_long else rope.short_factors)
    return frequencies


def _stretch_slow(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Slow down the pairs that turn less than once in the original context, with a smooth passage.

    Source: https://github.com/meta-llama/llama-models, scaling of Llama 3.1.
    """
    turns = rope.original_max_position * frequencies / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / rope.factor)


def _stretch_by_range(rope: RopeConfig, frequencies: Tensor, rotary_dim: int) -> Tensor:
    """YaRN (arXiv:2309.00071, section 3.2): keep the fast pairs, slow down the slow ones."""

    def pair_of(turns: float) -> float:
        """The pair that turns so often in the original context."""
        length = rope.original_max_position / (2 * math.pi * turns)
        return rotary_dim * math.log(length) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    pairs = torch.arange(len(frequencies), dtype=torch.float32)
    stretched = ((pairs - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    return frequencies * (1.0 - stretched) + frequencies / rope.factor * stretched
