"""The work of attention, split on the device so that a captured graph follows other lengths.

One small kernel per step reads the lengths and writes what every layer's attention reads. Nothing
in it depends on heads or block size, and grids depend on the shapes of the batch alone.

The buffer is int32. From its front: arrival counters; a record for each decode row (number of its
first piece in the batch, context_len, chunk_len, 0), and one that ends the count (pieces in all,
pieces of the longest row, 0, 0); `kernels.triton.shares` divides them between programs. At the
buffer's back: prefill tiles (row, first token, tokens, position of the first token) in the order of
falling cost, so that processors that take them in turn finish together; one without tokens is
unused.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.triton.launch import overlap, wait_for_inputs

# tokens of a piece of a decode row, the least that one program attends to
PIECE_LEN = 64
# A row is merged from chunks of one piece or, where those would be more than MAX_CHUNKS, of a power
# of two of pieces. Its length alone decides, so its bits depend on nothing else.
MAX_CHUNKS = 32
# query tokens of a prefill tile
TILE_LEN = 128
# arrival counters: programs that may share the decode rows
MAX_PROGRAMS = 2048

_RECORD = 4


def plan_attention(layout: BatchLayout) -> Tensor:
    """Split the attention of a step into pieces of decode rows and tiles of prefill rows.

    Returns:
        The work buffer on the layout's device, to be read through the functions below.
    """
    device = layout.context_lens.device
    num_rows, num_decodes = layout.context_lens.shape[0], layout.num_decodes
    num_prefill_tokens = layout.positions.shape[0] - num_decodes
    num_tiles = max_prefill_tiles(num_prefill_tokens, num_rows - num_decodes)
    decode_len = MAX_PROGRAMS + (num_decodes + 1) * _RECORD
    work = torch.empty(decode_len + num_tiles * _RECORD, dtype=torch.int32, device=device)
    if num_rows == 0:
        return work
    _plan_kernel[(num_rows,)](
        work,
        layout.context_lens,
        layout.query_starts,
        num_rows,
        num_decodes,
        decode_len,
        num_tiles,
        PIECE_LEN=PIECE_LEN,
        MAX_CHUNKS=MAX_CHUNKS,
        NUM_COUNTERS=MAX_PROGRAMS,
        TILE_LEN=TILE_LEN,
        ROWS=max(16, triton.next_power_of_2(num_rows)),
        **overlap(device),
    )
    return work


def max_prefill_tiles(num_tokens: int, num_rows: int) -> int:
    """The most tiles that `num_rows` chunks of `num_tokens` tokens in all can have."""
    return num_tokens // TILE_LEN + num_rows


def decode_counters(work: Tensor) -> Tensor:
    """[MAX_PROGRAMS]: arrivals, zero before and after every call."""
    return work[:MAX_PROGRAMS]


def decode_rows(work: Tensor) -> Tensor:
    """[rows + 1, 4] flat: records of the rows that decode."""
    return work[MAX_PROGRAMS:]


def prefill_tiles(work: Tensor, num_tokens: int, num_rows: int) -> Tensor:
    """[max_prefill_tiles, 4] flat."""
    return work[work.shape[0] - max_prefill_tiles(num_tokens, num_rows) * _RECORD :]


@triton.jit
def num_pieces_of(context_lens, PIECE_LEN: tl.constexpr):
    """One for a row without tokens too, which writes zeros."""
    return tl.maximum(tl.cdiv(context_lens, PIECE_LEN), 1)


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
    PIECE_LEN: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    NUM_COUNTERS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the record of one row; the last one's program ends the count and clears counters."""
    rows = tl.arange(0, ROWS)
    lens = tl.load(context_lens + rows, rows < row, other=0)
    counts = tl.where(rows < row, num_pieces_of(lens, PIECE_LEN), 0)
    first = tl.sum(counts)
    context_len = tl.load(context_lens + row)
    num_pieces = num_pieces_of(context_len, PIECE_LEN)
    chunk_len = PIECE_LEN
    while chunk_len * MAX_CHUNKS < context_len:
        chunk_len *= 2
    record = work + NUM_COUNTERS + row * 4
    _store_record(record, first, context_len, chunk_len, 0, None)
    if row == num_decodes - 1:
        longest = tl.maximum(tl.max(counts, 0), num_pieces)
        _store_record(record + 4, first + num_pieces, longest, 0, 0, None)
        counters = tl.arange(0, NUM_COUNTERS)
        tl.store(work + counters, tl.zeros_like(counters))


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


@triton.jit(do_not_specialize=["num_rows", "num_decodes", "tiles_start", "num_tiles"])
def _plan_kernel(
    work,
    context_lens,
    query_starts,
    num_rows,
    num_decodes,
    tiles_start,
    num_tiles,
    PIECE_LEN: tl.constexpr,
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
            PIECE_LEN,
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
