"""Prefill attention on Hopper: warps that only fetch, and products that run beside the softmax.

A program has a warp that fetches, one or two groups of four warps that attend to 64 rows each, and
a ring of tiles in shared memory between them. The fetching warp looks blocks up in the block table
and asks the tensor memory accelerator for one head of each; it runs ahead, into the program's next
work too. A group asks for the product with the keys of a tile and for the product with the values
of the tile before, and computes the softmax of the one while the other runs (FlashAttention-3,
arXiv:2407.08608, section 3.2). Tiles begin at position 0 and have one size, as in
`kernels.triton.attention.prefill_attention`, so the bits of a token depend neither on chunks nor on the
batch.
"""

import functools

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.triton.attention.attention_work import AttentionWork
from kernels.triton.attention.hopper.attend import attend
from kernels.triton.attention.hopper.fetch import Source, fetch
from kernels.triton.attention.hopper.ring import HALF, make_ring
from kernels.triton.attention.hopper.schedule import ROWS, Schedule
from kernels.triton.launch import num_sms

# keys of a tile; part of the result's bits
_KEYS = 128
_NUM_STAGES = 3
# of a thread; the first group takes 256, and each three times 168 are what the program began with
_SECOND_GROUP_REGISTERS = gl.constexpr(216)
_FETCH_REGISTERS = gl.constexpr(32)


def is_for_hopper(q: Tensor, kv_layer: Tensor) -> bool:
    """Whether `hopper_prefill` can: on Hopper, 16-bit heads of 64 or 128, blocks of 16 or more."""
    block_size, head_dim = kv_layer.shape[3:]
    return (
        _is_hopper(q.device)
        and q.element_size() == 2
        and head_dim in (64, 128)
        and block_size >= 16
        and block_size & (block_size - 1) == 0
    )


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def hopper_prefill(
    q: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    work: AttentionWork,
    exponent_scale: float,
    out: Tensor,
    num_groups: int | None = None,
) -> None:
    """Compute `prefill_attention` where `is_for_hopper` says so.

    Args:
        q, kv_layer, block_tables, work, out: as there.
        exponent_scale: factor of the scores as exponents of 2.
        num_groups: of warps that attend, in each program, 1 or 2; None chooses by what there is to
            do. Bits do not depend on it.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = kv_layer.shape[2:4]
    group = num_heads // num_kv_heads
    # heads that share a key head are rows of one product, where they fill it without rest
    packed = group if group & (group - 1) == 0 and group <= ROWS.value else 1
    num_groups = num_groups or _num_groups(q, packed, work)
    num_parts = triton.cdiv(work.max_tile_tokens * packed, num_groups * ROWS.value)
    num_items = len(work.tiles) * (num_heads // packed) * num_parts
    _hopper_prefill_kernel[(min(num_items, num_sms(q.device)),)](
        out,
        _boxes_of_queries(q, packed),
        _boxes_of_pool(kv_layer),
        block_tables,
        work.tiles,
        num_items,
        num_parts,
        block_tables.stride(0),
        kv_layer.stride(0) // head_dim,
        exponent_scale,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        PACKED=packed,
        BLOCK_SIZE=block_size,
        DIM=head_dim,
        TILE=_KEYS,
        STAGES=_NUM_STAGES,
        GROUPS=num_groups,
        num_warps=4,
        launch_pdl=True,
    )


def _num_groups(q: Tensor, packed: int, work: AttentionWork) -> int:
    """Two groups share what is fetched; one leaves no multiprocessor idle when there is little."""
    num_products = q.shape[0] * q.shape[1] // ROWS.value
    is_one_enough = work.max_tile_tokens * packed <= ROWS.value
    return 1 if is_one_enough or num_products <= num_sms(q.device) else 2


def _boxes_of_queries(q: Tensor, packed: int) -> TensorDescriptor:
    """Queries by boxes that are the rows of a group's product."""
    box = [ROWS.value // packed, packed, HALF.value]
    return TensorDescriptor(q, list(q.shape), list(q.stride()), box, _swizzled(rank=3))


def _boxes_of_pool(kv_layer: Tensor) -> TensorDescriptor:
    """A layer of the pool as rows of keys or values, by boxes of tokens that lie together."""
    num_blocks, _, num_kv_heads, block_size, head_dim = kv_layer.shape
    num_rows = (num_blocks - 1) * kv_layer.stride(0) // head_dim + 2 * num_kv_heads * block_size
    # what the accelerator takes for a place; 2^31 rows of 128 bytes would be 256 GiB
    assert num_rows < 2**31
    box = [min(block_size, _KEYS), HALF.value]
    return TensorDescriptor(kv_layer, [num_rows, head_dim], [head_dim, 1], box, _swizzled(rank=2))


@functools.cache
def _swizzled(rank: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)


@gluon.jit(
    do_not_specialize=["num_items", "num_parts", "table_stride"],
    do_not_specialize_on_alignment=["block_tables"],
)
def _hopper_prefill_kernel(
    out,
    q,
    pool,
    block_tables,
    tiles,
    num_items,
    num_parts,
    table_stride,
    rows_per_block,
    scale,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PACKED: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    DIM: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):
    PIECE_LEN: gl.constexpr = pool.block_type.shape[0]
    source = Source(q, pool, block_tables, table_stride, rows_per_block)
    schedule = Schedule(tiles, num_items, num_parts)
    ring = make_ring(q.dtype, DIM, TILE, STAGES, GROUPS)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (0, out, schedule, scale, ring, HEADS, PACKED, PIECE_LEN)),
                (attend, (1, out, schedule, scale, ring, HEADS, PACKED, PIECE_LEN)),
                (fetch, (source, schedule, ring, HEADS, KV_HEADS, BLOCK_SIZE)),
            ],
            [4, 1],
            [_SECOND_GROUP_REGISTERS, _FETCH_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (attend, (0, out, schedule, scale, ring, HEADS, PACKED, PIECE_LEN)),
                (fetch, (source, schedule, ring, HEADS, KV_HEADS, BLOCK_SIZE)),
            ],
            [1],
            [_FETCH_REGISTERS],
        )
