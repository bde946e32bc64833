"""Copies whole blocks of the pool: copy-on-write (paper, section 4.4)."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import overlap, wait_for_inputs

# 16 bytes per thread and access at 2 bytes an element, eight of them in flight
_SLICE = 8192


@triton.jit
def _copy_blocks_kernel(
    kv,
    sources,
    destinations,
    block_stride,
    block_len,
    SLICE: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    entry = tl.program_id(1)
    wait_for_inputs(OVERLAPPED)
    source = kv + tl.load(sources + entry).to(tl.int64) * block_stride
    destination = kv + tl.load(destinations + entry).to(tl.int64) * block_stride
    elements = tl.program_id(0) * SLICE + tl.arange(0, SLICE)
    is_element = elements < block_len
    values = tl.load(source + elements, is_element)
    tl.store(destination + elements, values, is_element)


def copy_blocks(kv: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy kv[destinations] = kv[sources] IN PLACE.

    Args:
        kv: [num_blocks, ...], each block contiguous.
        sources, destinations: [N], int32 or int64; no block is both, none is written twice.
    """
    assert kv[0].is_contiguous()
    assert sources.shape == destinations.shape
    if len(sources) == 0:
        return
    block_len = kv[0].numel()
    grid = (triton.cdiv(block_len, _SLICE), len(sources))
    _copy_blocks_kernel[grid](
        kv,
        sources,
        destinations,
        kv.stride(0),
        block_len,
        SLICE=_SLICE,
        num_warps=4,
        **overlap(kv.device),
    )
