"""The work of attention, split on the device so that a captured graph follows other lengths.

One small kernel per step reads the lengths and writes what every layer's attention reads. Grids
depend only on the shapes of the batch.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.batch import BatchLayout
from kernels.triton.attention.shares import ShareCounts, at, divide, owner_of
from kernels.triton.launch import overlap, wait_for_inputs

# tokens of a piece of a decode row, the least that one program attends to
PIECE_LEN = 64
# the most chunks that a row is merged from, see `_is_chunk_short`
MAX_CHUNKS = 32
# query tokens of a prefill tile
TILE_LEN = 128
# arrival counters: programs that may share the decode rows
MAX_PROGRAMS = 2048


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """What the kernels of every layer read; tensors are int32 parts of one buffer.

    Attributes:
        counts: numbers of shares of the decode rows.
        counters: [MAX_PROGRAMS] arrivals, zero before and after every call.
        rows: [num_decodes, 4] first piece in the batch, context_len, binary logarithm of the pieces
            of a chunk, and a share that the row is in; of rows in several shares no two have one.
        shares: [counts.most, 8] first piece, end, first row, 0, and what `rows` says of that row:
            all that a program must know before it can ask for keys. None without decode rows.
        tiles: [num_tiles, 4] row, first token, tokens and position of the first token of prefill
            tiles, in the order of falling cost, so that processors that take them in turn finish
            together; those without tokens are unused.
        max_tile_tokens: the most tokens that a tile has.
    """

    counts: ShareCounts
    counters: Tensor
    rows: Tensor
    shares: Tensor
    tiles: Tensor
    max_tile_tokens: int


def plan_attention(layout: BatchLayout, counts: ShareCounts, window: int = 0) -> AttentionWork:
    """Split the attention of a step into shares of decode rows and tiles of prefill rows.

    Args:
        window: see `KernelBackend.attention`; what is before the windows of decode rows is left
            out.
    """
    device = layout.context_lens.device
    num_rows, num_decodes = layout.context_lens.shape[0], layout.num_decodes
    num_shares = counts.most if num_decodes else 0
    work = _allocate(layout, counts, num_shares)
    if num_rows == 0:
        return work
    _plan_kernel[(num_rows + num_shares,)](
        work.counters,
        work.rows,
        work.shares,
        work.tiles,
        layout.context_lens,
        layout.query_starts,
        num_rows,
        num_decodes,
        counts.of_rows,
        counts.of_pieces,
        len(work.tiles),
        PIECE_LEN=PIECE_LEN,
        MAX_CHUNKS=MAX_CHUNKS,
        NUM_COUNTERS=MAX_PROGRAMS,
        TILE_LEN=TILE_LEN,
        ROWS=max(16, triton.next_power_of_2(num_rows)),
        WINDOW=window,
        **overlap(device),
    )
    return work


def _allocate(layout: BatchLayout, counts: ShareCounts, num_shares: int) -> AttentionWork:
    num_decodes = layout.num_decodes
    num_prefills = layout.context_lens.shape[0] - num_decodes
    # the most tiles that so many chunks with so many tokens in all can have
    num_tiles = (layout.positions.shape[0] - num_decodes) // TILE_LEN + num_prefills
    sizes = MAX_PROGRAMS, num_decodes * 4, num_shares * 8, num_tiles * 4
    buffer = torch.empty(sum(sizes), dtype=torch.int32, device=layout.context_lens.device)
    counters, rows, shares, tiles = buffer.split(sizes)
    rows, shares = rows.view(num_decodes, 4), shares.view(num_shares, 8)
    tiles = tiles.view(num_tiles, 4)
    return AttentionWork(counts, counters, rows, shares, tiles, min(layout.max_query_len, TILE_LEN))


@triton.jit
def base_of(context_lens, PIECE_LEN: tl.constexpr, WINDOW: tl.constexpr):
    """Tokens of a row before its first piece: whole pieces that its last token does not see."""
    if WINDOW > 0:
        base = tl.maximum(context_lens - WINDOW, 0) // PIECE_LEN * PIECE_LEN
    else:
        base = tl.zeros_like(context_lens)
    return base


@triton.jit
def num_pieces_of(attended_lens, PIECE_LEN: tl.constexpr):
    """One for a row without tokens too, which writes zeros."""
    return tl.maximum(tl.cdiv(attended_lens, PIECE_LEN), 1)


@triton.jit
def _is_chunk_short(chunk_len, context_len, MAX_CHUNKS: tl.constexpr):
    """Whether a row of so many tokens wants longer chunks than these.

    Long ones take time to attend to, many of them to merge; both at once are least where a chunk's
    length grows as the square root of the row's. 1024 tokens, 8 rows, 8 key heads, H200: 13.0 us in
    chunks of 128 and 14.2 in chunks of 64. Only the row's length decides, so its bits
    depend on nothing else.
    """
    is_merge_longer = chunk_len < tl.cdiv(8 * context_len, chunk_len)
    return is_merge_longer | (chunk_len * MAX_CHUNKS < context_len)


@triton.jit
def _store_record(place, first, second, third, fourth):
    tl.store(place, first)
    tl.store(place + 1, second)
    tl.store(place + 2, third)
    tl.store(place + 3, fourth)


@triton.jit
def _plan_decode(
    rows_out,
    shares_out,
    context_lens,
    row,
    share,
    num_rows,
    row_shares,
    piece_shares,
    PIECE_LEN: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Write the record of a row or, if `share` is not negative, that of a share."""
    rows = tl.arange(0, ROWS)
    lens = tl.load(context_lens + rows, rows < num_rows, other=0)
    if WINDOW > 0:
        lens -= base_of(lens, PIECE_LEN, WINDOW)
    counts = tl.where(rows < num_rows, num_pieces_of(lens, PIECE_LEN), 0)
    firsts = tl.cumsum(counts) - counts
    record = rows_out + row * 4
    if share >= 0:
        start, end, row = divide(firsts, counts, num_rows, share, row_shares, piece_shares)
        _store_record(shares_out + share * 8, start, end, row, 0)
        record = shares_out + share * 8 + 4
    attended_len, chunk_bits = at(lens, row), 0
    while _is_chunk_short(PIECE_LEN << chunk_bits, attended_len, MAX_CHUNKS):
        chunk_bits += 1
    context_len = attended_len
    if WINDOW > 0:
        context_len = tl.load(context_lens + row)
    owner = owner_of(firsts, counts, num_rows, row, row_shares, piece_shares)
    _store_record(record, at(firsts, row), context_len, chunk_bits, owner)


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
        # the kernel sees only the prefill tokens, and each decode row has one token before them
        token = first - num_decodes + tile * TILE_LEN
        _store_record(tiles + rank * 4, row - num_decodes, token, num_tokens, position)
    if row == num_rows - 1:
        for unused in range(tl.sum(tl.where(is_row, counts, 0)), num_tiles):
            _store_record(tiles + unused * 4, 0, 0, 0, 0)


@triton.jit(
    do_not_specialize=["num_rows", "num_decodes", "row_shares", "piece_shares", "num_tiles"]
)
def _plan_kernel(
    counters,
    rows_out,
    shares_out,
    tiles_out,
    context_lens,
    query_starts,
    num_rows,
    num_decodes,
    row_shares,
    piece_shares,
    num_tiles,
    PIECE_LEN: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    NUM_COUNTERS: tl.constexpr,
    TILE_LEN: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row, share = tl.program_id(0), tl.program_id(0) - num_rows
    wait_for_inputs(OVERLAPPED)
    if row == 0:
        places = tl.arange(0, NUM_COUNTERS)
        tl.store(counters + places, tl.zeros_like(places))
    if (row < num_decodes) | (share >= 0):
        _plan_decode(
            rows_out,
            shares_out,
            context_lens,
            row,
            share,
            num_decodes,
            row_shares,
            piece_shares,
            PIECE_LEN,
            MAX_CHUNKS,
            ROWS,
            WINDOW,
        )
    else:
        _plan_prefill(
            tiles_out,
            context_lens,
            query_starts,
            row,
            num_rows,
            num_decodes,
            num_tiles,
            TILE_LEN,
            ROWS,
        )
