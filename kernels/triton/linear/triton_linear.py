"""Linear layers: a kernel that streams the weights for small batches, cuBLAS for large ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from kernels.linears import in_tiles
from kernels.triton.linear.streamed_product import StreamedProduct

# (out_features, in_features) -> rows up to which the kernel is faster than cuBLAS
_STREAMED_ROWS = {(4096, 14336): 32}  # cuBLASLt is faster at 64
# On an H200 at 64 rows, us here and of cuBLAS: 11.7 and 12.0 (4096 x 4096), 15.6 and 16.4 (6144 x
# 4096), 16.2 and 16.5 (5120 x 5120), 55.1 and 58.6 (20480 x 5120), 57.1 and 59.3 (5120 x 20480); at
# 96 rows 322 and 276 (128256 x 4096), 47.4 and 42.2 (15360 x 5120).
_DEFAULT_STREAMED_ROWS = 64
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
    """Let torch multiply by cuBLASLt, which it offers only as a setting of the process."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)
