"""PagedAttention for rows with one new token (paper, section 4.1).

Programs that stay on the GPU walk the items of `attention_work`: one key head of one row, over one
chunk of its tokens (the split of Flash-Decoding, https://pytorch.org/blog/flash-decoding). The
query heads that share the key head are the rows of one matrix product; a single one takes the same
path, padded to the 16 rows of the tensor cores. The softmax is online and in base 2. Rows of one
chunk are written at once; for others the program that arrives last merges the chunks in their
order, so results depend neither on the batch nor on who comes first. Twin: `kernels.reference`.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.attention_work import (
    CHUNK_LEN,
    MAX_CHUNKS,
    MAX_KV_HEADS,
    decode_counters,
    decode_items,
)
from kernels.triton.launch import overlap, wait_for_inputs

# stands for minus infinity: differences of it are 0, not NaN
_LOWEST = tl.constexpr(-1e30)
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the kernel is compiled and launched.

    Attributes:
        tile_len: tokens whose keys are in flight together; part of the result's bits.
        programs_per_sm: resident programs per multiprocessor.
    """

    tile_len: int = 32
    num_stages: int = 3
    num_warps: int = 4
    programs_per_sm: int = 4


def decode_attention(
    q: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    work: Tensor,
    scale: float,
    out: Tensor | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Attend with one query token per row.

    Args:
        q: [R, num_heads, head_dim], float16, bfloat16 or float32, each token contiguous.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], the dtype of q, blocks
            contiguous. Slots behind a context may hold anything.
        block_tables: [R, max_blocks] int32.
        work: the buffer of `plan_attention` for a batch that begins with these R rows; its
            counters are used and left as they were.
        scale: factor of the scores.
        out: where the result goes, contiguous; None makes a new tensor.
        tuning: None takes the fastest known.

    Returns:
        [R, num_heads, head_dim]; zeros for a row with context_len 0.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, block_size = kv_layer.shape[2:4]
    group = num_heads // num_kv_heads
    assert group * num_kv_heads == num_heads
    assert num_kv_heads <= MAX_KV_HEADS
    assert q.stride()[1:] == (head_dim, 1)
    assert kv_layer[0].is_contiguous()
    assert block_tables.shape[0] == num_rows
    out = torch.empty_like(q) if out is None else out
    if num_rows == 0:
        return out
    columns = max(16, triton.next_power_of_2(head_dim))
    tuning = tuning or _tuning(columns * q.element_size())
    max_chunks = min(MAX_CHUNKS, triton.cdiv(block_tables.shape[1] * block_size, CHUNK_LEN))
    num_slots = num_rows * max_chunks * num_heads if max_chunks > 1 else 0
    partials = q.new_empty(num_slots * head_dim, dtype=torch.float32)
    statistics = q.new_empty(num_slots * 2, dtype=torch.float32)
    max_items = num_rows * max_chunks * num_kv_heads
    grid = min(max_items, _num_sms(q.device) * tuning.programs_per_sm)
    _decode_kernel[(grid,)](
        out,
        q,
        kv_layer,
        block_tables,
        work,
        decode_counters(work),
        decode_items(work, num_rows),
        partials,
        statistics,
        q.stride(0),
        block_tables.stride(0),
        max_chunks,
        kv_layer.stride(0),
        scale * _LOG2_E,
        HEADS=num_kv_heads,
        GROUP=group,
        BLOCK_SIZE=block_size,
        DIM=head_dim,
        COUNTERS=MAX_KV_HEADS,
        ROWS=max(16, triton.next_power_of_2(group)),
        COLUMNS=columns,
        TILE=tuning.tile_len,
        STAGES=tuning.num_stages,
        num_warps=tuning.num_warps,
        **overlap(q.device),
    )
    return out


@functools.cache
def _num_sms(device: torch.device) -> int:
    # the interpreter runs programs one after the other
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _tuning(row_bytes: int) -> Tuning:
    """Choose by the bytes of one key, so that a program's tiles fit into shared memory.

    For keys of 256 bytes the fastest of 15 over 11 shapes on an H200: in the geometric mean 1.10
    times FlashAttention-3's time (0.93 to 1.26); 4 stages 1.13, tiles of 64 tokens 1.14, of 16
    tokens 1.37, 2 warps 1.21. Without reductions across warps in the loop, by products batched over
    warps, 1.38 on an H100: its merge at the end costs more than it saves.
    """
    if row_bytes <= 256:
        return Tuning()
    if row_bytes <= 512:
        return Tuning(programs_per_sm=2)
    return Tuning(num_stages=2, programs_per_sm=1)


@triton.jit
def _attend_chunk(
    queries,
    keys,
    table,
    start,
    end,
    block_stride,
    scale,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Attend to tokens [start, end).

    Block ids of the next tile are loaded before this tile's keys are needed: with ids loaded where
    they are used, the compiler keeps one tile in flight instead of STAGES - 1.

    Returns:
        Maximum [ROWS] and sum [ROWS] of the weights, and the weighted sum of values
        [ROWS, COLUMNS] before division.
    """
    VALUES: tl.constexpr = HEADS * BLOCK_SIZE * DIM
    dims = tl.arange(0, COLUMNS)
    tokens = start + tl.arange(0, TILE)
    highest = tl.full([ROWS], _LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, COLUMNS], tl.float32)
    blocks = tl.load(table + tokens // BLOCK_SIZE, tokens < end, other=0)
    for _ in tl.range(start, end, TILE, num_stages=STAGES):
        places = blocks.to(tl.int64) * block_stride + (tokens % BLOCK_SIZE) * DIM
        pointers = keys + places[:, None] + dims[None, :]
        # a value that is not there must be 0: its weight is 0, and 0 * NaN is NaN
        is_there = (tokens < end)[:, None] & (dims < DIM)[None, :]
        following = tokens + TILE
        blocks = tl.load(table + following // BLOCK_SIZE, following < end, other=0)
        key = tl.load(pointers, is_there, other=0.0)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where((tokens < end)[None, :], scores, _LOWEST)
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(pointers + VALUES, is_there, other=0.0)
        attended *= shrink[:, None]
        attended = tl.dot(weights.to(value.dtype), value, attended, input_precision="ieee")
        highest = new_highest
        tokens = following
    return highest, total, attended


@triton.jit
def _merge_chunks(
    partials,
    statistics,
    num_chunks,
    partial_offsets,
    statistic_offsets,
    is_row,
    is_element,
    PARTIAL_STRIDE: tl.constexpr,
    STATISTIC_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Merge the chunks of a row in their order, past the first-level cache: others wrote them."""
    highest = tl.full([ROWS], _LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, COLUMNS], tl.float32)
    for chunk in tl.range(num_chunks, num_stages=3):
        place = statistics + chunk * STATISTIC_STRIDE + statistic_offsets
        chunk_highest = tl.load(place, is_row, other=_LOWEST, cache_modifier=".cg")
        chunk_total = tl.load(place + 1, is_row, other=0.0, cache_modifier=".cg")
        partial = tl.load(
            partials + chunk * PARTIAL_STRIDE + partial_offsets,
            is_element,
            other=0.0,
            cache_modifier=".cg",
        )
        new_highest = tl.maximum(highest, chunk_highest)
        shrink, chunk_shrink = tl.exp2(highest - new_highest), tl.exp2(chunk_highest - new_highest)
        total = total * shrink + chunk_total * chunk_shrink
        attended = attended * shrink[:, None] + partial * chunk_shrink[:, None]
        highest = new_highest
    return total, attended


@triton.jit(do_not_specialize=["q_stride", "table_stride", "max_chunks"])
def _decode_kernel(
    out,
    q,
    kv_layer,
    block_tables,
    num_items,
    counters,
    items,
    partials,
    statistics,
    q_stride,
    table_stride,
    max_chunks,
    block_stride,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    COUNTERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    heads, dims = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_head = heads < GROUP
    is_element = is_head[:, None] & (dims < DIM)[None, :]
    wait_for_inputs(OVERLAPPED)
    end_of_work = tl.load(num_items) * HEADS
    # heads side by side, so that programs at work together read whole blocks
    for work in tl.range(tl.program_id(0), end_of_work, tl.num_programs(0)):
        item, kv_head = work // HEADS, work % HEADS
        row = tl.load(items + item * 4)
        chunk = tl.load(items + item * 4 + 1)
        context_len = tl.load(items + item * 4 + 2)
        chunk_len = tl.load(items + item * 4 + 3)
        elements = (kv_head * GROUP + heads)[:, None] * DIM + dims[None, :]
        queries = tl.load(q + row.to(tl.int64) * q_stride + elements, is_element, other=0.0)
        highest, total, attended = _attend_chunk(
            queries,
            kv_layer + kv_head * (BLOCK_SIZE * DIM),
            block_tables + row.to(tl.int64) * table_stride,
            chunk * chunk_len,
            tl.minimum(context_len, (chunk + 1) * chunk_len),
            block_stride,
            scale,
            HEADS,
            BLOCK_SIZE,
            DIM,
            ROWS,
            COLUMNS,
            TILE,
            STAGES,
        )
        num_chunks = tl.cdiv(context_len, chunk_len)
        is_last = True
        if num_chunks > 1:
            first = row.to(tl.int64) * (max_chunks * HEADS * GROUP)
            slot = first + chunk * (HEADS * GROUP)
            tl.store(partials + slot * DIM + elements, attended, is_element)
            statistic = (kv_head * GROUP + heads) * 2
            tl.store(statistics + slot * 2 + statistic, highest, is_head)
            tl.store(statistics + slot * 2 + statistic + 1, total, is_head)
            # every thread's part is written before the arrival that publishes it
            tl.debug_barrier()
            counter = counters + row * COUNTERS + kv_head
            is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_chunks - 1
            if is_last:
                total, attended = _merge_chunks(
                    partials + first * DIM,
                    statistics + first * 2,
                    num_chunks,
                    elements,
                    statistic,
                    is_head,
                    is_element,
                    HEADS * GROUP * DIM,
                    HEADS * GROUP * 2,
                    ROWS,
                    COLUMNS,
                )
                # for the next layer, and the next replay of a graph
                tl.store(counter, 0)
        if is_last:
            result = attended / tl.where(total > 0, total, 1.0)[:, None]
            place = out + row.to(tl.int64) * (HEADS * GROUP * DIM) + elements
            tl.store(place, result.to(out.dtype.element_ty), is_element)
