"""Linear layers: a kernel that streams the weights for small batches, cuBLAS for large ones."""

from collections.abc import Iterator
from contextlib import contextmanager

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
# rows up to which cuBLASLt chooses better than cuBLAS: 46.7 us instead of 49.9 at 64 rows, 48.4
# instead of 55.0 at 128, a norm before it included; equal at 256, and for the other shapes of the
# 8B, but 267 instead of 247 at 768 rows of (28672, 4096)
_LT_ROWS = {(4096, 14336): 128}


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
        # with a bias torch asks cuBLASLt by itself
        self._lt_rows = _LT_ROWS.get(shape, 0) if bias is None else 0

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        if self._streamed is None:
            return in_tiles(self._multiply, x) if is_deterministic else self._multiply(x)
        if is_deterministic or len(x) <= self._streamed_rows:
            return self._streamed(x)
        if len(x) <= self._lt_rows:
            with _cublas_lt():
                return self._multiply(x)
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


@contextmanager
def _cublas_lt() -> Iterator[None]:
    """Let torch multiply by cuBLASLt, which it offers as a setting of the process alone."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)
