"""PagedAttention for rows with one new token (paper, section 4.1).

The tokens of the batch are divided into shares (`kernels.triton.attention.shares`), and a program
attends to one share for one key head. Keys are the rows of one matrix product and values,
transposed, those of the other; the query heads that share the key head are the columns of both,
padded to the 8 of the tensor cores. (Queries as rows would be padded to 16: twice the
products and twice the registers.)
A program is one warp, which waits for no other: the more of them, the more keys are in flight.

The softmax is online within chunks of a row, whose borders depend only on the row; chunks are
merged in their order, so results depend neither on the batch nor on who comes first. Where a row is
split between shares (Flash-Decoding, https://pytorch.org/blog/flash-decoding), the program that
arrives last merges its chunks. Twin: `kernels.reference`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.attention.attention_work import (
    MAX_CHUNKS,
    PIECE_LEN,
    AttentionWork,
    base_of,
    num_pieces_of,
)
from kernels.triton.attention.decode_tuning import padded_dims, tuning_for
from kernels.triton.attention.partial_softmax import (
    LOG2_E,
    LOWEST,
    STATISTICS,
    capped,
    merge,
    merge_slots,
    no_tokens,
    store_result,
    store_state,
    with_sinks,
)
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.paging import group_size, load_block_ids, token_offsets


def decode_attention(
    q: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    work: AttentionWork,
    scale: float,
    out: Tensor | None = None,
    *,
    softcap: float = 0.0,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with one query token per row.

    Args:
        q: [R, num_heads, head_dim], float16, bfloat16 or float32, each token contiguous.
        kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], the dtype of q, blocks
            contiguous. Slots behind a context may hold anything.
        block_tables: [R, max_blocks] int32.
        work: the plan, for this window, of a batch that begins with these R rows; its counters are
            used and left as they were.
        scale: factor of the scores.
        out: where the result goes, contiguous; None makes a new tensor.
        softcap, window, sinks: see `KernelBackend.attention`.

    Returns:
        [R, num_heads, head_dim]; zeros for a row with context_len 0.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, block_size = kv_layer.shape[2:4]
    group = group_size(q, kv_layer)
    assert block_tables.shape[0] == num_rows
    out = torch.empty_like(q) if out is None else out
    if num_rows == 0:
        return out
    tuning = tuning_for(kv_layer, group, work.counts)
    num_shares = work.counts.most
    state_size = num_heads * MAX_CHUNKS * (head_dim + STATISTICS.value)
    states = q.new_empty(num_shares * state_size, dtype=torch.float32)
    _decode_kernel[(num_shares * num_kv_heads,)](
        out,
        q,
        kv_layer,
        block_tables,
        work.rows,
        work.shares,
        work.counters,
        states,
        sinks if sinks is not None else work.counters,
        q.stride(0),
        block_tables.stride(0),
        kv_layer.stride(0),
        scale * LOG2_E.value,
        HEADS=num_kv_heads,
        GROUP=group,
        BLOCK_SIZE=block_size,
        DIM=head_dim,
        PIECE_LEN=PIECE_LEN,
        MAX_CHUNKS=MAX_CHUNKS,
        DIMS=padded_dims(head_dim),
        QUERIES=max(8, triton.next_power_of_2(group)),
        STORED_QUERIES=triton.next_power_of_2(group),
        TILE=tuning.tile_len,
        STAGES=tuning.num_stages,
        SOFTCAP=softcap * LOG2_E.value,
        WINDOW=window,
        HAS_SINKS=sinks is not None,
        num_warps=tuning.num_warps,
        **overlap(q.device),
    )
    return out


@triton.jit
def _attend(
    queries,
    keys,
    table,
    block_stride,
    start,
    end,
    base,
    seen,
    chunk_len,
    is_whole,
    slots,
    slot,
    scale,
    VALUES: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Attend to tokens [start, end), chunk by chunk; queries are [DIMS, QUERIES].

    With a WINDOW chunks begin at token `base`, and tokens before `seen` are not seen. The chunks of
    a whole row are merged, those of others are stored for who merges them, from `slot` on.

    Returns:
        The merged state.
    """
    DIMS: tl.constexpr = queries.shape[0]
    QUERIES: tl.constexpr = queries.shape[1]
    dims = tl.arange(0, DIMS)
    merged = no_tokens(DIMS, QUERIES)
    highest, total, attended = no_tokens(DIMS, QUERIES)
    blocks = load_block_ids(table, start, end, BLOCK_SIZE, TILE)
    for first in tl.range(start, end, TILE, num_stages=STAGES):
        token_places = token_offsets(blocks, first, block_stride, BLOCK_SIZE, DIM, TILE)
        blocks = load_block_ids(table, first + TILE, end, BLOCK_SIZE, TILE)
        tokens = first + tl.arange(0, TILE)
        is_token = tokens < end
        if WINDOW > 0:
            is_token &= tokens >= seen
        key_places = keys + token_places[:, None] + dims[None, :]
        key = tl.load(key_places, dims[None, :] < DIM, other=0.0)
        scores = tl.dot(key, queries, input_precision="ieee") * scale
        if SOFTCAP > 0:
            scores = capped(scores, SOFTCAP)
        scores = tl.where(is_token[:, None], scores, LOWEST)
        new_highest = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.exp2(scores - new_highest[None, :])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 0)
        # loaded as it is multiplied, transposed: the compiler does not transpose it on its way
        value_places = keys + VALUES + token_places[None, :] + dims[:, None]
        # a value that is not there must be 0: its weight is 0, and 0 * NaN is NaN
        value = tl.load(value_places, is_token[None, :] & (dims[:, None] < DIM), other=0.0)
        attended *= shrink[None, :]
        attended = tl.dot(value, weights.to(value.dtype), attended, input_precision="ieee")
        highest = new_highest
        next_first = first + TILE
        in_chunk = next_first - base if WINDOW > 0 else next_first
        if (in_chunk & (chunk_len - 1) == 0) | (next_first >= end):
            state = highest, total, attended
            if is_whole:
                merged = merge(merged, state)
            else:
                store_state(slots, slot, state, GROUP, DIM)
                slot += 1
            highest, total, attended = no_tokens(DIMS, QUERIES)
    return merged


@triton.jit
def _arrive(counter, num_mine, num_chunks):
    """Publish the chunks that this program stored; whether they were the last of the row."""
    # every thread's part is written before the arrival that publishes it
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, num_mine, sem="acq_rel", scope="gpu")
    is_last = arrived + num_mine == num_chunks
    if is_last:
        # for the next layer, and the next replay of a graph
        tl.store(counter, 0)
    return is_last


@triton.jit
def _load_sinks(sinks, kv_head, GROUP: tl.constexpr, QUERIES: tl.constexpr):
    """Sinks of the heads that share a key head, as exponents."""
    heads = tl.arange(0, QUERIES)
    return tl.load(sinks + kv_head * GROUP + heads, heads < GROUP, other=0.0) * LOG2_E


@triton.jit(do_not_specialize=["q_stride", "table_stride"])
def _decode_kernel(
    out,
    q,
    kv_layer,
    block_tables,
    rows,
    shares,
    counters,
    states,
    sinks,
    q_stride,
    table_stride,
    block_stride,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    PIECE_LEN: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
    STORED_QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    heads, dims = tl.arange(0, QUERIES)[None, :], tl.arange(0, DIMS)[:, None]
    # the heads of a share side by side: they read the same blocks
    share, kv_head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    wait_for_inputs(OVERLAPPED)
    record = shares + share * 8
    start, end, row = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    piece, context_len = tl.load(record + 4), tl.load(record + 5)
    chunk_bits, owner = tl.load(record + 6), tl.load(record + 7)
    while piece < end:
        base = base_of(context_len, PIECE_LEN, WINDOW)
        num_pieces = num_pieces_of(context_len - base, PIECE_LEN)
        # a chunk is of the share that it begins in
        above = (1 << chunk_bits) - 1
        num_chunks = (num_pieces + above) >> chunk_bits
        first_chunk = (tl.maximum(start - piece, 0) + above) >> chunk_bits
        end_chunk = tl.minimum((end - piece + above) >> chunk_bits, num_chunks)
        num_mine = end_chunk - first_chunk
        if num_mine > 0:
            chunk_len = PIECE_LEN << chunk_bits
            query = q + row.to(tl.int64) * q_stride + (kv_head * GROUP + heads) * DIM + dims
            counter = owner * HEADS + kv_head
            slots = states + counter * (MAX_CHUNKS * GROUP * (DIM + STATISTICS))
            state = _attend(
                tl.load(query, (heads < GROUP) & (dims < DIM), other=0.0),
                kv_layer + kv_head * (BLOCK_SIZE * DIM),
                block_tables + row.to(tl.int64) * table_stride,
                block_stride,
                base + first_chunk * chunk_len,
                tl.minimum(context_len, base + end_chunk * chunk_len),
                base,
                context_len - WINDOW,
                chunk_len,
                num_mine == num_chunks,
                slots,
                first_chunk,
                scale,
                HEADS * BLOCK_SIZE * DIM,
                GROUP,
                BLOCK_SIZE,
                DIM,
                TILE,
                STAGES,
                SOFTCAP,
                WINDOW,
            )
            place = out + (row.to(tl.int64) * HEADS + kv_head) * (GROUP * DIM)
            if num_mine == num_chunks:
                if HAS_SINKS:
                    state = with_sinks(state, _load_sinks(sinks, kv_head, GROUP, QUERIES))
                store_result(place, state, GROUP, DIM)
            elif _arrive(counters + counter, num_mine, num_chunks):
                whole = merge_slots(slots, num_chunks, GROUP, DIM, DIMS, STORED_QUERIES)
                if HAS_SINKS:
                    whole = with_sinks(whole, _load_sinks(sinks, kv_head, GROUP, STORED_QUERIES))
                store_result(place, whole, GROUP, DIM)
        piece += num_pieces
        row += 1
        if piece < end:
            record = rows + row * 4
            context_len = tl.load(record + 1)
            chunk_bits, owner = tl.load(record + 2), tl.load(record + 3)
