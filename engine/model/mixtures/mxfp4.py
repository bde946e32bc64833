"""Unpacks MXFP4: groups of 32 numbers of 4 bits that share a power of 2.

Source: OCP Microscaling Formats, version 1.0, https://www.opencompute.org/documents.
"""

import torch
from torch import Tensor

# by the four bits: sign, two of the exponent, one of the mantissa
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


def unpack_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Make numbers of packed ones.

    Args:
        blocks: [..., groups, 16] uint8, of each byte the lower half first.
        scales: [..., groups] uint8, exponents of 2 with a bias of 127.

    Returns:
        [..., 32 * groups]; exact, as far as the dtype has such exponents.
    """
    values = torch.tensor((*_MAGNITUDES, *(-m for m in _MAGNITUDES)), device=blocks.device)
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    numbers = values.to(dtype)[halves.int()]
    powers = torch.exp2(scales.double() - _EXPONENT_BIAS)
    return (numbers * powers.to(dtype)[..., None]).flatten(-2)
