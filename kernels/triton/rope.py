"""Splits fused queries, keys and values: rotates them, writes keys and values into their slots.

One launch per layer; twins are `rope_write` and `kv_write` in `kernels.reference`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import are_few, let_next_start, overlap, wait_for_inputs

# heads per program: 16 x 64 pairs of float32 are 16 registers a thread at 4 warps
_HEADS = 16


@triton.jit
def _write_kernel(
    q,
    kv,
    qkv,
    cos_sin,
    positions,
    slot_mapping,
    qkv_stride,
    block_stride,
    num_heads,
    num_kv_heads,
    block_size,
    head_dim,
    IS_ROTATED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = head_dim // 2
    pairs = tl.arange(0, HALF)
    is_pair = pairs < half
    # [HEADS, HALF], the first element of each pair
    places = heads[:, None] * head_dim + pairs[None, :]
    is_query = (heads < num_heads)[:, None] & is_pair[None, :]
    is_any = (heads < num_heads + 2 * num_kv_heads)[:, None] & is_pair[None, :]
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    first = tl.load(qkv + token * qkv_stride + places, is_any)
    second = tl.load(qkv + token * qkv_stride + places + half, is_any)
    if IS_ROTATED:
        row = cos_sin + tl.load(positions + token) * head_dim + pairs
        cos = tl.load(row, is_pair, other=0.0)[None, :]
        sin = tl.load(row + half, is_pair, other=0.0)[None, :]
        wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
        is_rotated = (heads < num_heads + num_kv_heads)[:, None]
        turned_first = (wide_first * cos - wide_second * sin).to(first.dtype)
        turned_second = (wide_second * cos + wide_first * sin).to(first.dtype)
        first = tl.where(is_rotated, turned_first, first)
        second = tl.where(is_rotated, turned_second, second)
    query = q + token * num_heads * head_dim + places
    tl.store(query, first, is_query)
    tl.store(query + half, second, is_query)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        # keys of all heads, then values of all heads
        layer_heads = (heads - num_heads)[:, None].to(tl.int64)
        block = kv + (slot // block_size) * block_stride
        cache_places = (layer_heads * block_size + slot % block_size) * head_dim + pairs[None, :]
        is_written = is_any & (layer_heads >= 0)
        tl.store(block + cache_places, first, is_written)
        tl.store(block + cache_places + half, second, is_written)


def rope_write(
    qkv: Tensor, cos_sin: Tensor, positions: Tensor, slot_mapping: Tensor, kv_layer: Tensor
) -> Tensor:
    """Rotate queries and keys, write keys and values into their slots IN PLACE.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], rows contiguous; heads of q, k, v.
        cos_sin: [max_position, head_dim] float32, contiguous: cosines, then sines.
        positions, slot_mapping: [T] int64; slot -1 is not written.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim] of the dtype of qkv, each
            block contiguous.

    Returns:
        [T, num_heads, head_dim], contiguous.
    """
    assert cos_sin.dtype == torch.float32
    assert cos_sin.shape[1] == kv_layer.shape[4]
    assert cos_sin.is_contiguous()
    assert positions.dtype == torch.int64
    return _write(qkv, cos_sin, positions, slot_mapping, kv_layer)


def kv_write(qkv: Tensor, slot_mapping: Tensor, kv_layer: Tensor) -> Tensor:
    """Do what `rope_write` does without rotating."""
    return _write(qkv, None, None, slot_mapping, kv_layer)


def _write(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor | None,
    slot_mapping: Tensor,
    kv_layer: Tensor,
) -> Tensor:
    num_tokens, width = qkv.shape
    _, _, num_kv_heads, block_size, head_dim = kv_layer.shape
    num_heads = width // head_dim - 2 * num_kv_heads
    assert head_dim % 2 == 0
    assert width == (num_heads + 2 * num_kv_heads) * head_dim
    assert qkv.stride(1) == 1
    assert qkv.dtype == kv_layer.dtype
    assert kv_layer[0].is_contiguous()
    assert slot_mapping.dtype == torch.int64
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return q
    grid = (num_tokens, triton.cdiv(num_heads + 2 * num_kv_heads, _HEADS))
    _write_kernel[grid](
        q,
        kv_layer,
        qkv,
        cos_sin,
        positions,
        slot_mapping,
        qkv.stride(0),
        kv_layer.stride(0),
        num_heads,
        num_kv_heads,
        block_size,
        head_dim,
        IS_ROTATED=cos_sin is not None,
        HEADS=_HEADS,
        HALF=triton.next_power_of_2(head_dim // 2),
        HAS_FEW_ROWS=are_few(num_tokens),
        num_warps=4,
        **overlap(qkv.device),
    )
    return q
