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
    count,
    block_stride,
    block_len,
    HAS_COUNT: tl.constexpr,
    SLICE: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    entry = tl.program_id(1)
    wait_for_inputs(OVERLAPPED)
    is_entry = True
    if HAS_COUNT:
        is_entry = entry < tl.load(count)
    if is_entry:
        source = kv + tl.load(sources + entry).to(tl.int64) * block_stride
        destination = kv + tl.load(destinations + entry).to(tl.int64) * block_stride
        elements = tl.program_id(0) * SLICE + tl.arange(0, SLICE)
        is_element = elements < block_len
        values = tl.load(source + elements, is_element)
        tl.store(destination + elements, values, is_element)


def copy_blocks(
    kv: Tensor, sources: Tensor, destinations: Tensor, count: Tensor | None = None
) -> None:
    """Copy kv[destinations] = kv[sources] IN PLACE.

    Args:
        kv: [num_blocks, ...], each block contiguous.
        sources, destinations: [N], int32 or int64; no block is both, none is written twice.
        count: [1] int32 on the device, how many of the N entries are valid; None for all. With it
            a captured graph can copy another number of blocks at each replay.
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
        count,
        kv.stride(0),
        block_len,
        HAS_COUNT=count is not None,
        SLICE=_SLICE,
        num_warps=4,
        **overlap(kv.device),
    )
