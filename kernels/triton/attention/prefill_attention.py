"""PagedAttention for chunks of prompts: causal, over cached prefix and new tokens alike.

The chunk's keys and values are in the pool before, so there is one path for both. Programs take the
tiles of `attention_work`, the longest contexts first. The online softmax is FlashAttention-2's
(arXiv:2307.08691). Tiles of keys begin at position 0 and have one size, so the bits of a token
depend neither on where chunks begin nor on the batch. Hopper has a kernel of its own for most
models, `hopper_prefill`. Twin: `kernels.reference`.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.attention.attention_work import TILE_LEN, AttentionWork
from kernels.triton.attention.hopper.prefill import hopper_prefill, is_for_hopper
from kernels.triton.attention.partial_softmax import LOG2_E, LOWEST, capped
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.paging import group_size, load_block_ids, token_offsets


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """How the kernel is compiled.

    Attributes:
        num_rows: of the matrix products: query tokens, or query tokens times heads; a power of
            two up to TILE_LEN.
        tile_len: keys of a tile; part of the result's bits.
        is_packed: whether the heads that share a key head are rows of one product.
    """

    num_rows: int = 64
    tile_len: int = 64
    num_stages: int = 3
    num_warps: int = 4
    is_packed: bool = True


def prefill_attention(
    q: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    work: AttentionWork,
    scale: float,
    out: Tensor | None = None,
    tuning: PrefillTuning | None = None,
    *,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with several query tokens per row, each to itself and what comes before it.

    Args:
        q: [T, num_heads, head_dim], float16, bfloat16 or float32, each token contiguous: the last
            T tokens of the batch that `work` was planned for.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], the dtype of q, blocks
            contiguous. Slots behind a context may hold anything.
        block_tables: [R, max_blocks] int32, the rows of these tokens.
        work: the plan of the batch.
        scale: factor of the scores, positive.
        out: where the result goes, contiguous; None makes a new tensor.
        tuning: of this module's kernel; None takes the fastest known, of this or `hopper_prefill`.
        softcap, window, sinks: see `KernelBackend.attention`; `hopper_prefill` has none.

    Returns:
        [T, num_heads, head_dim]; tokens that belong to no row are not written.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = kv_layer.shape[2:4]
    group = group_size(q, kv_layer)
    out = torch.empty_like(q) if out is None else out
    if num_tokens == 0:
        return out
    exponent_scale = scale * LOG2_E.value
    is_plain = not softcap and not window and sinks is None
    if tuning is None and is_plain and is_for_hopper(q, kv_layer):
        hopper_prefill(q, kv_layer, block_tables, work, exponent_scale, out)
        return out
    columns = max(16, triton.next_power_of_2(head_dim))
    tuning = tuning or _tuning(q.device, columns * q.element_size())
    # a power of two divides the rows without rest
    is_packed = tuning.is_packed and group & (group - 1) == 0 and group <= tuning.num_rows
    packed = group if is_packed else 1
    num_parts = TILE_LEN * packed // tuning.num_rows
    _prefill_kernel[(len(work.tiles) * (num_heads // packed) * num_parts,)](
        out,
        q,
        kv_layer,
        block_tables,
        work.tiles,
        sinks if sinks is not None else work.counters,
        q.stride(0),
        block_tables.stride(0),
        kv_layer.stride(0),
        exponent_scale,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        BLOCK_SIZE=block_size,
        DIM=head_dim,
        PACKED=packed,
        PARTS=num_parts,
        ROWS=tuning.num_rows,
        COLUMNS=columns,
        TILE=tuning.tile_len,
        STAGES=tuning.num_stages,
        SOFTCAP=softcap * LOG2_E.value,
        WINDOW=window,
        HAS_SINKS=sinks is not None,
        num_warps=tuning.num_warps,
        **overlap(q.device),
    )
    return out


@functools.cache
def _tuning(device: torch.device, row_bytes: int) -> PrefillTuning:
    """Choose by the bytes of one key and by the matrix unit.

    Matrix units before Hopper's prefer what the compiler keeps in registers. For Hopper's see the
    log of measurements, which has what was raced: this reaches 390 to 420 TFLOP/s on an H200 for
    4k tokens of 32 heads over 8, where `hopper_prefill` has 540 and FlashAttention-3 545.
    """
    if row_bytes > 256:
        return PrefillTuning(num_rows=32, tile_len=32, num_stages=2)
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != 9:
        return PrefillTuning(num_rows=128, tile_len=32, num_warps=8)
    return PrefillTuning()


@triton.jit
def _load_tile(
    pointers, is_token, dims, DIM: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr
):
    """Keys or values; zeros where there are none, since a weight of 0 times NaN is NaN."""
    if MASKED:
        tile = tl.load(pointers, is_token & (dims < DIM), other=0.0)
    elif COLUMNS != DIM:
        tile = tl.load(pointers, dims < DIM, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _attend_tiles(
    state,
    queries,
    positions,
    keys,
    table,
    block_stride,
    start,
    end,
    seen,
    scale,
    MASKED: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Attend to tokens [start, end), of which all are visible to all rows unless MASKED.

    With a WINDOW no row sees tokens before `seen`.
    """
    COLUMNS: tl.constexpr = queries.shape[1]
    highest, total, attended = state
    dims = tl.arange(0, COLUMNS)[None, :]
    blocks = load_block_ids(table, start, end, BLOCK_SIZE, TILE)
    for first in tl.range(start, end, TILE, num_stages=STAGES):
        token_places = token_offsets(blocks, first, block_stride, BLOCK_SIZE, DIM, TILE)
        pointers = keys + token_places[:, None] + dims
        blocks = load_block_ids(table, first + TILE, end, BLOCK_SIZE, TILE)
        tokens = first + tl.arange(0, TILE)
        is_token = (tokens < end)[:, None]
        if WINDOW > 0:
            is_token &= (tokens >= seen)[:, None]
        key = _load_tile(pointers, is_token, dims, DIM, COLUMNS, False)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee")
        if SOFTCAP > 0:
            scores = capped(scores * scale, SOFTCAP) / scale
        if MASKED:
            is_seen = tokens[None, :] <= positions[:, None]
            if WINDOW > 0:
                is_seen &= tokens[None, :] > positions[:, None] - WINDOW
            scores = tl.where(is_seen, scores, LOWEST)
        new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 1)
        attended *= shrink[:, None]
        value = _load_tile(pointers + VALUES, is_token, dims, DIM, COLUMNS, MASKED)
        attended = tl.dot(weights.to(value.dtype), value, attended, input_precision="ieee")
        highest = new_highest
    return highest, total, attended


@triton.jit
def _attend(
    queries,
    positions,
    keys,
    table,
    block_stride,
    first_position,
    end,
    scale,
    VALUES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Attend to tokens [0, end), of which `first_position` is the first row's own.

    All rows see those up to there, but for what is before their windows.

    Returns:
        Highest exponent [ROWS], sum [ROWS] of the weights, and the weighted sum of values
        [ROWS, COLUMNS] before division.
    """
    seen_by_all = (first_position + 1) // TILE * TILE
    seen = tl.maximum(first_position + 1 - WINDOW, 0)
    # the first tile that is in the windows of all rows
    whole = tl.minimum(tl.cdiv(tl.maximum(end - WINDOW, 0), TILE) * TILE, seen_by_all)
    FIRST_PHASE: tl.constexpr = 0 if WINDOW > 0 else 1
    ROWS: tl.constexpr = queries.shape[0]
    attended = tl.zeros([ROWS, queries.shape[1]], tl.float32)
    state = tl.full([ROWS], LOWEST, tl.float32), tl.zeros([ROWS], tl.float32), attended
    for phase in tl.static_range(FIRST_PHASE, 3):
        if phase == 2:
            start, stop = seen_by_all, end
        elif phase == 0:
            start, stop = seen // TILE * TILE, whole
        else:
            start, stop = whole if WINDOW > 0 else 0, seen_by_all
        state = _attend_tiles(
            state,
            queries,
            positions,
            keys,
            table,
            block_stride,
            start,
            stop,
            seen,
            scale,
            phase != 1,
            VALUES,
            BLOCK_SIZE,
            DIM,
            TILE,
            STAGES,
            SOFTCAP,
            WINDOW,
        )
    return state


@triton.jit(do_not_specialize=["q_stride", "table_stride"])
def _prefill_kernel(
    out,
    q,
    kv_layer,
    block_tables,
    tiles,
    sinks,
    q_stride,
    table_stride,
    block_stride,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    PACKED: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    # a tile has a program for each PACKED heads and each part of its tokens, the last part first
    PROGRAMS: tl.constexpr = HEADS // PACKED * PARTS
    tile, program = tl.program_id(0) // PROGRAMS, tl.program_id(0) % PROGRAMS
    first = (PARTS - 1 - program % PARTS) * (ROWS // PACKED)
    first_head = program // PARTS * PACKED
    kv_head = first_head // (HEADS // KV_HEADS)
    wait_for_inputs(OVERLAPPED)
    row = tl.load(tiles + tile * 4).to(tl.int64)
    first_token = tl.load(tiles + tile * 4 + 1).to(tl.int64)
    num_tokens = tl.load(tiles + tile * 4 + 2)
    first_position = tl.load(tiles + tile * 4 + 3)
    if first >= num_tokens:
        return
    rows, dims = tl.arange(0, ROWS), tl.arange(0, COLUMNS)[None, :]
    indices = first + rows // PACKED
    is_element = (indices < num_tokens)[:, None] & (dims < DIM)
    elements = (first_head + rows % PACKED)[:, None] * DIM + dims
    tokens = (first_token + indices)[:, None]
    highest, total, attended = _attend(
        tl.load(q + tokens * q_stride + elements, is_element, other=0.0),
        first_position + indices,
        kv_layer + kv_head * (BLOCK_SIZE * DIM),
        block_tables + row * table_stride,
        block_stride,
        first_position + first,
        first_position + tl.minimum(first + ROWS // PACKED, num_tokens),
        scale,
        KV_HEADS * BLOCK_SIZE * DIM,
        BLOCK_SIZE,
        DIM,
        TILE,
        STAGES,
        SOFTCAP,
        WINDOW,
    )
    if HAS_SINKS:
        sink = tl.load(sinks + first_head + rows % PACKED) * LOG2_E
        new_highest = tl.maximum(highest, sink)
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.exp2(sink - new_highest)
        attended *= shrink[:, None]
    result = (attended / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + tokens * (HEADS * DIM) + elements, result, is_element)
