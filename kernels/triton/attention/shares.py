"""Shares of the decode rows of a batch, one for each program of a key head.

Rows of about one length are divided as rows: into whole ones, or each into equally many parts. That
saves what it costs to begin in the middle of a row and to merge its parts, a sixth of the time at
32 rows. Other batches are divided as pieces, so that all programs end together.
"""

import functools
import math
from dataclasses import dataclass

import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class ShareCounts:
    """Numbers of shares of a batch.

    Attributes:
        of_rows: where rows are divided.
        of_pieces: where pieces are.
    """

    of_rows: int
    of_pieces: int

    @property
    def most(self) -> int:
        """As many as may be needed; which of the two, the lengths of the rows decide."""
        return max(self.of_rows, self.of_pieces)


@functools.cache
def share_counts(sms: int, num_rows: int, num_kv_heads: int, programs_per_sm: int) -> ShareCounts:
    """The best numbers of shares.

    Whole rows are the best shares where they keep the multiprocessors busy, and next to them equal
    parts of rows, as long as their number is a power of two.

    Args:
        sms: multiprocessors of the device.
        programs_per_sm: that keep a multiprocessor busy.
    """
    pieces = max(programs_per_sm * sms // num_kv_heads, 1)
    whole = max(n for n in range(1, pieces + 1) if num_rows % n == 0)
    # the more rows a share has, the less it costs to split some of them instead
    if whole * num_kv_heads >= (3 - 1.6 * whole / num_rows) * sms:
        return ShareCounts(whole, pieces)
    parts = 2 ** int(math.log2(max(pieces / num_rows, 1)))
    return ShareCounts(parts * num_rows if parts > 1 else pieces, pieces)


@triton.jit
def divide(firsts, counts, num_rows, share, row_shares, piece_shares):
    """The pieces [start, end) of a share, and the row that it begins in.

    Args:
        firsts, counts: [ROWS] first piece and number of pieces of each row; behind `num_rows` 0
            pieces.
        row_shares, piece_shares: see `ShareCounts`; the shares beyond are empty.

    Returns:
        start, end, row.
    """
    is_even = _is_even(counts, num_rows)
    num_shares = tl.where(is_even, row_shares, piece_shares)
    if is_even:
        start, row = _start_in_rows(firsts, counts, num_rows, share, num_shares)
        end, _ = _start_in_rows(firsts, counts, num_rows, share + 1, num_shares)
    else:
        start = _start_in_pieces(share, tl.sum(counts), num_shares)
        end = _start_in_pieces(share + 1, tl.sum(counts), num_shares)
        row = tl.sum(((firsts <= start) & (counts > 0)).to(tl.int32)) - 1
    return start, tl.where(share < num_shares, end, start), tl.minimum(row, num_rows - 1)


@triton.jit
def owner_of(firsts, counts, num_rows, row, row_shares, piece_shares):
    """A share that a row is in; of rows in several no two have one. Arguments as of `divide`."""
    in_pieces = _share_of(at(firsts, row), tl.sum(counts), piece_shares)
    return tl.where(_is_even(counts, num_rows), row * row_shares // num_rows, in_pieces)


@triton.jit
def at(values, index):
    """One of the integers in a tensor, 0 behind its end."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == index, values, 0))


@triton.jit
def _is_even(counts, num_rows):
    """Whether the longest row is at most an eighth longer than the mean."""
    return tl.max(counts, 0) * num_rows * 8 <= tl.sum(counts) * 9


@triton.jit
def _start_in_rows(firsts, counts, num_rows, share, num_shares):
    """First piece of a share of the rows, and its row."""
    row, part = share * num_rows // num_shares, share * num_rows % num_shares
    start = at(firsts, row) + part * at(counts, row) // num_shares
    return tl.where(row < num_rows, start, tl.sum(counts)), row


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
