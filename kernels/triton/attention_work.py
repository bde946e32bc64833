"""The work of attention, split on the device so that a captured graph follows other lengths.

One small kernel per step reads the lengths and writes what every layer's attention reads. Nothing
in it depends on heads or block size, and grids depend on the shapes of the batch alone.

The buffer is int32. From its front: the number of decode items, padded to four; an arrival counter
per (decode row, key head); decode items (row, chunk, context_len, chunk_len). At its back: prefill
tiles (row, first token, tokens, position of the first token); one without tokens is unused. Both
are in the order of falling cost, so that processors that take them in turn finish together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import BatchLayout
from kernels.triton.launch import overlap, wait_for_inputs

# Tokens of a decode item. A row that would need more than MAX_CHUNKS of them has longer ones,
# which bounds the memory of partial results; length and bits depend on the row alone.
CHUNK_LEN = 256
MAX_CHUNKS = 64
# query tokens of a prefill tile
TILE_LEN = 128
# arrival counters of a row
MAX_KV_HEADS = 128

_HEADER = 4
_ITEM = 4


def plan_attention(layout: BatchLayout) -> Tensor:
    """Split the attention of a step into items for decode rows and tiles for prefill rows.

    Returns:
        The work buffer on the layout's device, to be read through the functions below.
    """
    device = layout.context_lens.device
    num_rows, num_decodes = layout.context_lens.shape[0], layout.num_decodes
    num_prefill_tokens = layout.positions.shape[0] - num_decodes
    num_tiles = max_prefill_tiles(num_prefill_tokens, num_rows - num_decodes)
    decode_len = _items_start(num_decodes) + num_decodes * MAX_CHUNKS * _ITEM
    work = torch.empty(decode_len + num_tiles * _ITEM, dtype=torch.int32, device=device)
    if num_rows == 0:
        return work
    _plan_kernel[(num_rows,)](
        work,
        layout.context_lens,
        layout.query_starts,
        num_rows,
        num_decodes,
        _items_start(num_decodes),
        decode_len,
        num_tiles,
        CHUNK_LEN=CHUNK_LEN,
        MAX_CHUNKS=MAX_CHUNKS,
        NUM_COUNTERS=MAX_KV_HEADS,
        TILE_LEN=TILE_LEN,
        ROWS=max(16, triton.next_power_of_2(num_rows)),
        **overlap(device),
    )
    return work


def max_prefill_tiles(num_tokens: int, num_rows: int) -> int:
    """The most tiles that `num_rows` chunks of `num_tokens` tokens in all can have."""
    return num_tokens // TILE_LEN + num_rows


def decode_counters(work: Tensor) -> Tensor:
    """[rows, MAX_KV_HEADS] flat: arrivals, zero before and after every call."""
    return work[_HEADER:]


def decode_items(work: Tensor, num_rows: int) -> Tensor:
    """[rows * MAX_CHUNKS, 4] flat: items, the first work[0] of them valid."""
    return work[_items_start(num_rows) :]


def prefill_tiles(work: Tensor, num_tokens: int, num_rows: int) -> Tensor:
    """[max_prefill_tiles, 4] flat."""
    return work[work.shape[0] - max_prefill_tiles(num_tokens, num_rows) * _ITEM :]


def _items_start(num_rows: int) -> int:
    return _HEADER + num_rows * MAX_KV_HEADS


@triton.jit
def _chunk_lens(context_lens, CHUNK_LEN: tl.constexpr, MAX_CHUNKS: tl.constexpr):
    """Tokens of each row's items: CHUNK_LEN, doubled until MAX_CHUNKS items are enough."""
    chunk_lens = tl.zeros_like(context_lens) + CHUNK_LEN
    # nine times reaches contexts of 8 million tokens
    for _ in tl.static_range(9):
        is_short = chunk_lens * MAX_CHUNKS < context_lens
        chunk_lens = tl.where(is_short, chunk_lens * 2, chunk_lens)
    return chunk_lens


@triton.jit
def _pick(values, is_picked):
    """Sum of some values: the one of a row, or of all rows before it."""
    return tl.sum(tl.where(is_picked, values, 0))


@triton.jit
def _store_record(place, first, second, third, fourth, mask):
    tl.store(place, first, mask)
    tl.store(place + 1, second, mask)
    tl.store(place + 2, third, mask)
    tl.store(place + 3, fourth, mask)


@triton.jit
def _plan_decode(
    work,
    context_lens,
    row,
    num_decodes,
    items_start,
    CHUNK_LEN: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    NUM_COUNTERS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the items of one row: whole chunks in the order of rows, before what is left over.

    The leftovers of all rows are in the order of falling length. Row 0 writes the number of items.
    """
    rows = tl.arange(0, ROWS)
    is_row = rows < num_decodes
    lens = tl.load(context_lens + rows, is_row, other=0)
    chunk_lens = _chunk_lens(lens, CHUNK_LEN, MAX_CHUNKS)
    wholes = lens // chunk_lens
    # a row without tokens has one item, which writes zeros
    rests = tl.where(lens == 0, 1, lens % chunk_lens)
    num_wholes, has_rest = tl.sum(wholes), (rests > 0) & is_row
    if row == 0:
        tl.store(work, num_wholes + tl.sum(has_rest.to(tl.int32)))
    is_mine, is_before = rows == row, rows < row
    context_len, chunk_len = _pick(lens, is_mine), _pick(chunk_lens, is_mine)
    my_wholes, my_rest = _pick(wholes, is_mine), _pick(rests, is_mine)
    comes_first = has_rest & ((rests > my_rest) | ((rests == my_rest) & is_before))
    rest_rank = num_wholes + tl.sum(comes_first.to(tl.int32))
    chunks = tl.arange(0, MAX_CHUNKS)
    ranks = tl.where(chunks < my_wholes, _pick(wholes, is_before) + chunks, rest_rank)
    exists = (chunks < my_wholes) | ((chunks == my_wholes) & (my_rest > 0))
    _store_record(work + items_start + ranks * 4, row, chunks, context_len, chunk_len, exists)
    counters = tl.arange(0, NUM_COUNTERS)
    tl.store(work + 4 + row * NUM_COUNTERS + counters, tl.zeros_like(counters))


@triton.jit
def _plan_prefill(
    tiles,
    context_lens,
    query_starts,
    row,
    num_rows,
    num_decodes,
    num_tiles,
    TILE_LEN: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the tiles of one chunk, each at its rank by the length of its context.

    Rows break ties. The last row also marks the tiles that no chunk needs.
    """
    rows = num_decodes + tl.arange(0, ROWS)
    is_row = rows < num_rows
    starts = tl.load(query_starts + rows, is_row, other=0)
    query_lens = tl.load(query_starts + rows + 1, is_row, other=0) - starts
    prefix_lens = tl.load(context_lens + rows, is_row, other=0) - query_lens
    counts = tl.cdiv(query_lens, TILE_LEN)
    first = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - first
    prefix_len = tl.load(context_lens + row) - query_len
    for tile in range(tl.cdiv(query_len, TILE_LEN)):
        num_tokens = tl.minimum(query_len - tile * TILE_LEN, TILE_LEN)
        # a tile sees what comes before its end; of rows before this one, equals come first too
        seen = prefix_len + tile * TILE_LEN + num_tokens - (rows < row).to(tl.int32)
        whole = tl.minimum(tl.maximum(seen - prefix_lens, 0) // TILE_LEN, counts)
        num_shorter = tl.where(seen >= prefix_lens + query_lens, counts, whole)
        rank = tl.sum(tl.where(is_row, counts - num_shorter, 0))
        position = prefix_len + tile * TILE_LEN
        # the kernel sees the prefill tokens alone, and each decode row has one token before them
        token = first - num_decodes + tile * TILE_LEN
        _store_record(tiles + rank * 4, row - num_decodes, token, num_tokens, position, None)
    if row == num_rows - 1:
        for unused in range(tl.sum(tl.where(is_row, counts, 0)), num_tiles):
            _store_record(tiles + unused * 4, 0, 0, 0, 0, None)


@triton.jit(
    do_not_specialize=["num_rows", "num_decodes", "items_start", "tiles_start", "num_tiles"]
)
def _plan_kernel(
    work,
    context_lens,
    query_starts,
    num_rows,
    num_decodes,
    items_start,
    tiles_start,
    num_tiles,
    CHUNK_LEN: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    NUM_COUNTERS: tl.constexpr,
    TILE_LEN: tl.constexpr,
    ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0)
    wait_for_inputs(OVERLAPPED)
    if row < num_decodes:
        _plan_decode(
            work,
            context_lens,
            row,
            num_decodes,
            items_start,
            CHUNK_LEN,
            MAX_CHUNKS,
            NUM_COUNTERS,
            ROWS,
        )
    else:
        _plan_prefill(
            work + tiles_start,
            context_lens,
            query_starts,
            row,
            num_rows,
            num_decodes,
            num_tiles,
            TILE_LEN,
            ROWS,
        )
