"""Linear layers: a kernel that streams the weights for small batches, cuBLAS for large ones."""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.reference import in_tiles
from kernels.triton.streamed_product import StreamedProduct

# (out_features, in_features) -> rows up to which the kernel beats cuBLAS on an H100
_STREAMED_ROWS = {
    (6144, 4096): 32,  # 2.43 TB/s against 2.32 at 32 rows; equal at 64
    (28672, 4096): 64,  # 2.76 against 2.67 at 64; 2.57 against 2.60 at 128
    (4096, 14336): 32,  # 2.57 against 2.53 at 32; equal at 64
    (128256, 4096): 128,  # 2.91 against 2.67 at 64; 2.73 against 2.64 at 128
    (15360, 5120): 128,  # 2.71 against 2.59 at 64; 2.56 against 2.52 at 128
    (20480, 5120): 32,  # 2.75 against 2.68 at 32; 2.59 against 2.68 at 64
    (5120, 20480): 64,  # 2.58 against 2.50 at 64; 2.40 against 2.44 at 128
    (50272, 5120): 128,  # 2.89 against 2.70 at 64; 2.72 against 2.64 at 128
}
# 4096 x 4096: 2.31 against 2.08 at 16, but 2.14 against 2.28 at 32
_DEFAULT_STREAMED_ROWS = 16


class TritonLinear:
    """`kernels.backend.Linear` for NVIDIA GPUs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take a weight [out_features, in_features] and a bias [out_features]."""
        self._weight = weight
        self._bias = bias
        # the matrix units round float32 to 10 bits of mantissa, so it is left to cuBLAS
        is_streamed = weight.dtype in (torch.bfloat16, torch.float16)
        self._streamed = StreamedProduct(weight, bias) if is_streamed else None
        shape = (weight.shape[0], weight.shape[1])
        self._streamed_rows = _STREAMED_ROWS.get(shape, _DEFAULT_STREAMED_ROWS)

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        if self._streamed is None:
            return in_tiles(self._multiply, x) if is_deterministic else self._multiply(x)
        if is_deterministic or len(x) <= self._streamed_rows:
            return self._streamed(x)
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)
