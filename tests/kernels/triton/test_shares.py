"""Shares cover every piece once, and of rows in several shares no two have one owner."""

from itertools import pairwise

import pytest
import torch
import triton
import triton.language as tl

from kernels.triton.attention_work import PIECE_LEN, decode_rows, plan_attention
from kernels.triton.shares import divide, owner_of
from tests.kernels.batches import make_layout
from tests.kernels.triton.attention_batches import layout_on

# pieces of each row
EVEN = [[1], [9] * 32, [8, 9] * 12, [3] * 300]
RAGGED = [[1, 40], [9, 1, 17, 2, 30, 5], [*range(1, 40)], [2, 300]]


@triton.jit(do_not_specialize=["num_rows", "row_shares", "piece_shares"])
def _divide_kernel(out, owners, records, num_rows, row_shares, piece_shares):
    share = tl.program_id(0)
    start, end, row, division = divide(records, num_rows, share, row_shares, piece_shares)
    tl.store(out + share * 3, start)
    tl.store(out + share * 3 + 1, end)
    tl.store(out + share * 3 + 2, row)
    if share == 0:
        for index in range(num_rows):
            tl.store(owners + index, owner_of(index, tl.load(records + index * 4), division))


@pytest.mark.parametrize("num_shares", [(1, 1), (6, 6), (24, 7), (7, 24), (48, 49)])
@pytest.mark.parametrize("counts", EVEN + RAGGED)
def test_pieces_are_divided(
    counts: list[int], num_shares: tuple[int, int], device: torch.device
) -> None:
    rows = [(count * PIECE_LEN, 1) for count in counts]
    layout = layout_on(make_layout([[0] * length for length, _ in rows], rows, 1), device)
    records = decode_rows(plan_attention(layout))
    firsts = [sum(counts[:row]) for row in range(len(counts))]
    borders = [*firsts, sum(counts)]
    most = max(num_shares)
    out = torch.empty(most, 3, dtype=torch.int32, device=device)
    owners = torch.empty(len(counts), dtype=torch.int32, device=device)

    _divide_kernel[(most,)](out, owners, records, len(counts), *num_shares)

    shares: list[list[int]] = out.tolist()
    covered = [piece for start, end, _ in shares for piece in range(start, end)]
    assert covered == list(range(sum(counts)))
    for start, end, row in shares:
        assert start == end or borders[row] <= start < borders[row + 1]
    inner = {start for start, end, _ in shares if start < end} - set(firsts)
    split = [
        row
        for row, (first, behind) in enumerate(pairwise(borders))
        if any(first < start < behind for start in inner)
    ]
    assert len({int(owners[row]) for row in split}) == len(split)
    used = num_shares[0] if counts in EVEN else num_shares[1]
    assert sum(end > start for start, end, _ in shares) <= used
    if counts in EVEN and len(counts) % used == 0:
        assert not split
