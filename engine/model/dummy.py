"""Random weights in the shapes of a model, to run any model without its files."""

import hashlib
import re
from math import prod

import torch
from torch import Tensor

from engine.architectures.weights import PACKED_SUFFIXES, Tensors
from engine.model.safetensors_folder import Progress

_STD = 0.02
# numbers of MXFP4 have a deviation of 2.9 before they are scaled, here by 2 ** -7
_MXFP4_SCALE = 127 - 7
_NORM = re.compile(r"(norm|ln_\w)\.weight$")


class DummySource:
    """Small normal weights, seeded by name: all ranks hold parts of the same model.

    A rank draws the whole of a tensor that it holds a part of.
    """

    def __init__(
        self,
        tensors: Tensors | None = None,
        dtype: torch.dtype = torch.float32,
        on_progress: Progress = lambda done, total: None,
    ) -> None:
        """Draw nothing yet.

        Args:
            tensors: of the model; without them, no progress is known.
            dtype: of those that are not packed.
            on_progress: called with bytes done and in total, at once and after each tensor.
        """
        self._left = {
            name: prod(shape) * (1 if name.endswith(PACKED_SUFFIXES) else dtype.itemsize)
            for name, shape in (tensors or {}).items()
        }
        self._total_bytes = sum(self._left.values())
        self._done_bytes = 0
        self._on_progress = on_progress
        self._note(0)

    def finish(self) -> None:
        """Say that the model has what it needs, which may be less than all tensors."""
        self._note(self._total_bytes - self._done_bytes)

    def fill(
        self, target: Tensor, name: str, shape: tuple[int, ...], *, dim: int, start: int
    ) -> None:
        """See `ParameterSource`; norm weights are near 1, all others near 0, packed ones too."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])
        generator = torch.Generator(target.device).manual_seed(seed)
        self._note(self._left.pop(name, 0))
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
        self._note(self._left.pop(name, 0))

    def _note(self, num_bytes: int) -> None:
        self._done_bytes += num_bytes
        if self._total_bytes:
            self._on_progress(self._done_bytes, self._total_bytes)
