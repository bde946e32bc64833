"""Linear layers whose weight is packed once for this CPU."""

import torch
from torch import Tensor

from kernels.backend import Linear
from kernels.cpu.library import Library
from kernels.huge_pages import Arena
from kernels.integers import div_ceil
from kernels.linears import DenseLinear, in_tiles

# inputs of a step and outputs of a block, see `source/linear.h`
_STEP_K = 32
_BLOCK_N = 32
# rows that the packed layout of oneDNN is chosen for: a decode batch
_ONEDNN_ROWS = 16


def make_cpu_linear(
    weight: Tensor, bias: Tensor | None, library: Library | None, arena: Arena | None = None
) -> Linear:
    """Pack a weight for our own product, else for oneDNN, else keep it.

    Measured on one core with 30 layers of SmolLM2-135M in bfloat16: AMX tiles (Emerald Rapids) 18
    ms for 32 tokens and 20 for 1, oneDNN 60 and 24. AVX512-BF16 (EPYC Genoa), with the head, 46 ms
    for 32 tokens, 14 for 8 and 18 for 1, oneDNN 61, 29 and 25. AVX2 (EPYC Milan), with the head,
    163 ms for 32 tokens, 71 for 8 and 24 for 1; torch, which has oneDNN only with AVX-512, 799, 224
    and 39. In float32 oneDNN takes 0.55 of the time of torch at 8 tokens, 0.9 at 32 and 128, 1.2 at
    1.
    """
    if library is not None and can_pack(weight, library):
        return PackedLinear(weight, bias, library, arena or Arena())
    in_bfloat16 = weight.dtype == torch.bfloat16
    if in_bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return OneDnnLinear(weight, bias)
    if weight.dtype == torch.float32 and _has_onednn():
        return OneDnnLinear(weight, bias)
    return DenseLinear(weight, bias)


def can_pack(weight: Tensor, library: Library) -> bool:
    """Whether the weight's dtype and shape suit `PackedLinear` on this CPU."""
    return multiplies(library, weight.dtype) and weight.shape[1] % _STEP_K == 0


def multiplies(library: Library, dtype: torch.dtype) -> bool:
    """Whether the kernels have a product of weights of this dtype, on this CPU."""
    return library.has_pairs and dtype == torch.bfloat16


class PackedLinear:
    """bfloat16 weight for AMX tiles, AVX-512 or AVX2; a row does not depend on the others."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        library: Library,
        arena: Arena,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Pack.

        Args:
            arena: where the packed weight is kept.
            out_dtype: bfloat16 or float32. Sums are in float32 either way.
        """
        self._out_features, self._in_features = weight.shape
        padded = div_ceil(self._out_features, _BLOCK_N) * _BLOCK_N
        self._packed = arena.empty(padded * self._in_features, weight.dtype)
        source = weight.contiguous()
        library.linear_pack(
            self._packed.data_ptr(), source.data_ptr(), self._out_features, self._in_features
        )
        self._bias = None if bias is None else bias.contiguous()
        self._addresses = (
            self._packed.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
        )
        self._out_dtype = out_dtype
        self._options = out_dtype == torch.float32, library.has_tiles
        self._library = library

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        del is_deterministic  # it always is
        assert x.is_contiguous()
        assert x.dtype == torch.bfloat16
        num_tokens, in_features = x.shape
        assert in_features == self._in_features
        out = torch.empty(num_tokens, self._out_features, dtype=self._out_dtype)
        shape = num_tokens, self._out_features, in_features
        self._library.linear(out.data_ptr(), x.data_ptr(), *self._addresses, *shape, *self._options)
        return out


class OneDnnLinear:
    """Weight in the layout that oneDNN prefers for small batches."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ONEDNN_ROWS)
        self._bias = bias

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        return in_tiles(self._multiply, x) if is_deterministic else self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return out


def _has_onednn() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available
