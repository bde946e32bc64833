"""Checksums of whole blocks in one pass; the twin is `kernels.checksum.Checksum`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checksum import MULTIPLIER, words_of

# 32 words per thread, all on their way at once
_SLICE = 8192
_WEIGHT = tl.constexpr(MULTIPLIER - (1 << 32))


@triton.jit
def _sum_words_kernel(words, blocks, sums, num_words, num_slices, SLICE: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks + entry).to(tl.int64)
    places = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    values = tl.load(words + block * num_words + places, places < num_words, other=0)
    # wraps around
    products = values * ((2 * places + 1) * _WEIGHT)
    total = tl.sum(products.to(tl.int64), 0)
    tl.store(sums + entry * num_slices + tl.program_id(1), total)


class TritonChecksum:
    """Sums of the words of blocks, each times a number of its own; see the twin."""

    def __init__(self, kv: Tensor) -> None:
        """Args: kv: the pool [num_blocks, ...], contiguous."""
        self._words = words_of(kv)

    def __call__(self, blocks: Tensor) -> Tensor:
        """Checksums [N] int64 of blocks [N] int64 of the pool, on its device."""
        num_words = self._words.shape[1]
        num_slices = triton.cdiv(num_words, _SLICE)
        sums = torch.empty(len(blocks), num_slices, dtype=torch.int64, device=blocks.device)
        if len(blocks):
            _sum_words_kernel[len(blocks), num_slices](
                self._words, blocks, sums, num_words, num_slices, SLICE=_SLICE, num_warps=8
            )
        return sums.sum(1)
