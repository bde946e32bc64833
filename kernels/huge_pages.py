"""Host memory in pages of 2 MiB, which are found faster than those of 4 KiB.

Measured on one core of an EPYC Genoa: reading packed weights takes 0.92 of the time, reading the
blocks of a KV pool 0.8.
"""

import ctypes
import mmap

import torch
from torch import Tensor

from kernels.integers import div_ceil

_MADV_HUGEPAGE = 14
_CHUNK_BYTES = 32 << 20
_ALIGNMENT = 64


def use_huge_pages(tensor: Tensor) -> None:
    """Ask for huge pages inside a tensor's memory; harmless where they are not known."""
    page = mmap.PAGESIZE
    start = div_ceil(tensor.data_ptr(), page) * page
    length = (tensor.data_ptr() + tensor.nbytes - start) // page * page
    if length > 0:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(_MADV_HUGEPAGE)
        )


class Arena:
    """Puts tensors that stay for good side by side, since each may be smaller than a page."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate [num_elements], aligned to 64 bytes."""
        num_bytes = num_elements * dtype.itemsize
        self._rest = self._rest[-self._rest.data_ptr() % _ALIGNMENT :]
        if num_bytes > len(self._rest):
            self._rest = torch.empty(max(num_bytes + _ALIGNMENT, _CHUNK_BYTES), dtype=torch.uint8)
            use_huge_pages(self._rest)
            self._rest = self._rest[-self._rest.data_ptr() % _ALIGNMENT :]
        taken, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return taken.view(dtype)
