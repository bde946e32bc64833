"""Splits fused queries, keys and values: norms, rotates, fills the slots of keys and values.

One launch per layer, whatever a model needs of it; twins are `rope_write`, `kv_write` and
`norm_rope_write` in `kernels.reference`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import are_few, let_next_start, overlap, wait_for_inputs

# heads per program: 16 x 64 pairs of float32 are 16 registers a thread at 4 warps
_HEADS = 16


@triton.jit
def _head_scales(first, second, means, token, heads, is_any, num_heads, head_dim, eps):
    """What the norm multiplies each head by, [HEADS, 1]: by itself, or as all of its kind."""
    if means is None:
        squares = tl.where(is_any, first * first + second * second, 0.0)
        mean = tl.sum(squares, axis=1) / head_dim
    else:
        mean = tl.load(means + token * 2 + (heads >= num_heads).to(tl.int32))
    return tl.rsqrt(mean + eps)[:, None]


@triton.jit
def _write_kernel(
    q,
    kv,
    qkv,
    cos_sin,
    positions,
    slot_mapping,
    gains,
    means,
    qkv_stride,
    block_stride,
    num_heads,
    num_kv_heads,
    block_size,
    head_dim,
    eps,
    IS_ROTATED: tl.constexpr,
    IS_NORMED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half, pairs = head_dim // 2, tl.arange(0, HALF)
    is_pair = pairs < half
    # [HEADS, HALF], the first element of each pair
    places = heads[:, None] * head_dim + pairs[None, :]
    is_query = (heads < num_heads)[:, None] & is_pair[None, :]
    is_any = (heads < num_heads + 2 * num_kv_heads)[:, None] & is_pair[None, :]
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    first = tl.load(qkv + token * qkv_stride + places, is_any)
    second = tl.load(qkv + token * qkv_stride + places + half, is_any)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    is_key_or_query = heads < num_heads + num_kv_heads
    if IS_NORMED:
        scale = _head_scales(
            wide_first, wide_second, means, token, heads, is_any, num_heads, head_dim, eps
        )
        is_gain = is_key_or_query[:, None] & is_pair[None, :]
        wide_first *= scale * tl.load(gains + places, is_gain, other=0.0).to(tl.float32)
        wide_second *= scale * tl.load(gains + places + half, is_gain, other=0.0).to(tl.float32)
        if not IS_ROTATED:
            first = tl.where(is_key_or_query[:, None], wide_first.to(first.dtype), first)
            second = tl.where(is_key_or_query[:, None], wide_second.to(first.dtype), second)
    if IS_ROTATED:
        row = cos_sin + tl.load(positions + token) * head_dim + pairs
        cos = tl.load(row, is_pair, other=0.0)[None, :]
        sin = tl.load(row + half, is_pair, other=0.0)[None, :]
        turned_first = (wide_first * cos - wide_second * sin).to(first.dtype)
        turned_second = (wide_second * cos + wide_first * sin).to(first.dtype)
        first = tl.where(is_key_or_query[:, None], turned_first, first)
        second = tl.where(is_key_or_query[:, None], turned_second, second)
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


def norm_rope_write(
    qkv: Tensor,
    gains: Tensor,
    eps: float,
    cos_sin: Tensor | None,
    positions: Tensor,
    slot_mapping: Tensor,
    kv_layer: Tensor,
    means: Tensor | None,
) -> Tensor:
    """Do what `rope_write` does with queries and keys that are normed first.

    Args:
        gains: [num_heads + num_kv_heads, head_dim], contiguous, any float dtype.
        cos_sin: None to rotate nothing.
        means: [T, 2] float32, contiguous: mean squares of queries and of keys; None for those of
            each head by itself.
    """
    assert gains.is_contiguous()
    assert means is None or (means.dtype == torch.float32 and means.is_contiguous())
    assert cos_sin is None or cos_sin.dtype == torch.float32
    return _write(
        qkv, cos_sin, positions, slot_mapping, kv_layer, gains=gains, means=means, eps=eps
    )


def kv_write(qkv: Tensor, slot_mapping: Tensor, kv_layer: Tensor) -> Tensor:
    """Do what `rope_write` does without rotating."""
    return _write(qkv, None, None, slot_mapping, kv_layer)


def _write(
    qkv: Tensor,
    cos_sin: Tensor | None,
    positions: Tensor | None,
    slot_mapping: Tensor,
    kv_layer: Tensor,
    *,
    gains: Tensor | None = None,
    means: Tensor | None = None,
    eps: float = 0.0,
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
        gains,
        means,
        qkv.stride(0),
        kv_layer.stride(0),
        num_heads,
        num_kv_heads,
        block_size,
        head_dim,
        eps,
        IS_ROTATED=cos_sin is not None,
        IS_NORMED=gains is not None,
        HEADS=_HEADS,
        HALF=triton.next_power_of_2(head_dim // 2),
        HAS_FEW_ROWS=are_few(num_tokens),
        num_warps=4,
        **overlap(qkv.device),
    )
    return q
