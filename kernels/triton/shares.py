"""Shares of the decode rows of a batch, one for each program of a key head.

Rows of about one length are divided as rows: into whole ones, or each into equally many parts. That
saves what it costs to begin in the middle of a row and to merge its parts, a sixth of the time at
32 rows. Other batches are divided as pieces, so that all programs end together.
"""

import math

import triton
import triton.language as tl


def share_counts(
    sms: int, num_rows: int, num_kv_heads: int, programs_per_sm: int
) -> tuple[int, int]:
    """Numbers of shares of rows and of pieces.

    Whole rows are the best shares where they keep the multiprocessors busy, and next to them equal
    parts of rows, as long as their number is a power of two. Programs without a share may cost
    others a tenth of their speed where they are many, so both numbers are about the same.

    Args:
        programs_per_sm: that keep a multiprocessor busy.
    """
    pieces = max(programs_per_sm * sms // num_kv_heads, 1)
    whole = max(n for n in range(1, pieces + 1) if num_rows % n == 0)
    # the more rows a share has, the less it costs to split some of them instead
    if whole * num_kv_heads >= (3 - 1.6 * whole / num_rows) * sms:
        return whole, max(whole, pieces)
    parts = 2 ** int(math.log2(max(pieces / num_rows, 1)))
    return (parts * num_rows if parts > 1 else pieces), pieces


@triton.jit
def divide(records, num_rows, share, row_shares, piece_shares):
    """The pieces [start, end) of a share, and the row that it begins in.

    Args:
        records: see `kernels.triton.attention_work`.
        row_shares, piece_shares: number of shares where rows, and where pieces are divided; the
            shares beyond are empty.

    Returns:
        start, end, row, and what `owner_of` needs.
    """
    # all that is loaded is asked for at once
    num_pieces = tl.load(records + num_rows * 4)
    longest = tl.load(records + num_rows * 4 + 1)
    start_in_rows, row_in_rows = _start_in_rows(records, num_rows, share, row_shares)
    end_in_rows, _ = _start_in_rows(records, num_rows, share + 1, row_shares)
    start = _start_in_pieces(share, num_pieces, piece_shares)
    end = _start_in_pieces(share + 1, num_pieces, piece_shares)
    row = _find_row(records, num_rows, start)
    # the longest row at most an eighth longer than the mean
    is_even = longest * num_rows * 8 <= num_pieces * 9
    num_shares = tl.where(is_even, row_shares, piece_shares)
    start = tl.where(is_even, start_in_rows, start)
    end = tl.where(share < num_shares, tl.where(is_even, end_in_rows, end), start)
    row = tl.where(is_even, row_in_rows, row)
    return start, end, row, (is_even, num_rows, num_pieces, num_shares)


@triton.jit
def owner_of(row, piece, division):
    """A share that a row is in, whose first piece is given; of rows in several no two have one."""
    is_even, num_rows, num_pieces, num_shares = division
    return tl.where(is_even, row * num_shares // num_rows, _share_of(piece, num_pieces, num_shares))


@triton.jit
def _start_in_rows(records, num_rows, share, num_shares):
    """First piece of a share of the rows, and its row."""
    row = tl.minimum(share * num_rows // num_shares, num_rows)
    part = share * num_rows % num_shares
    first = tl.load(records + row * 4)
    behind = tl.load(records + (row + 1) * 4, row < num_rows, other=0)
    return first + part * tl.maximum(behind - first, 0) // num_shares, row


@triton.jit
def _start_in_pieces(share, num_pieces, num_shares):
    """First piece of a share of the pieces; such shares differ by one piece at most."""
    return num_pieces // num_shares * share + tl.minimum(share, num_pieces % num_shares)


@triton.jit
def _share_of(piece, num_pieces, num_shares):
    """The share of the pieces that a piece is in."""
    least, num_larger = num_pieces // num_shares, num_pieces % num_shares
    end_of_larger = num_larger * (least + 1)
    behind = num_larger + (piece - end_of_larger) // tl.maximum(least, 1)
    return tl.where(piece < end_of_larger, piece // (least + 1), behind)


@triton.jit
def _find_row(records, num_rows, piece):
    """The row that a piece is of."""
    ROWS: tl.constexpr = 256
    rows = tl.arange(0, ROWS)
    starts = tl.load(records + rows * 4, rows < num_rows, other=2**31 - 1)
    row = tl.sum((starts <= piece).to(tl.int32)) - 1
    for first in range(ROWS, num_rows, ROWS):
        starts = tl.load(records + (first + rows) * 4, first + rows < num_rows, other=2**31 - 1)
        row += tl.sum((starts <= piece).to(tl.int32))
    return row
