"""Random weights in the shapes of a model, to run any model without its files."""

import hashlib
import re

import torch
from torch import Tensor

_STD = 0.02
# numbers of MXFP4 have a deviation of 2.9 before they are scaled, here by 2 ** -7
_MXFP4_SCALE = 127 - 7
_NORM = re.compile(r"(norm|ln_\w)\.weight$")


class DummySource:
    """Small normal weights, seeded by name: all ranks hold parts of the same model."""

    def fill(
        self, target: Tensor, name: str, shape: tuple[int, ...], *, dim: int, start: int
    ) -> None:
        """See `ParameterSource`; norm weights are near 1, all others near 0, packed ones too."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
        generator = torch.Generator(target.device).manual_seed(seed)
        if name.endswith("_scales"):
            target.fill_(_MXFP4_SCALE)
            return
        dtype, device = target.dtype, target.device
        if dtype == torch.uint8:
            whole = torch.randint(256, shape, generator=generator, dtype=dtype, device=device)
        else:
            whole = torch.randn(shape, generator=generator, dtype=dtype, device=device).mul_(_STD)
        if _NORM.search(name):
            whole.add_(1.0)
        target.copy_(whole.narrow(dim, start, target.shape[dim]))

    def skip(self, name: str) -> None:
        """See `ParameterSource`; no rank takes from another's."""
