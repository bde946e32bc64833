"""Shares keep the device busy and cover every piece; of rows in several no two have one owner."""

from itertools import pairwise

import pytest
import torch

from kernels.triton.attention.attention_work import PIECE_LEN, plan_attention
from kernels.triton.attention.shares import ShareCounts, share_counts
from tests.kernels.batches import make_layout
from tests.kernels.triton.attention.attention_batches import layout_on

# pieces of each row
EVEN = [[1], [9] * 32, [8, 9] * 12, [3] * 66]
RAGGED = [[1, 40], [9, 1, 17, 2, 30, 5], [*range(1, 40)], [2, 300]]
# of whole rows, and of parts of rows
NUM_SHARES = [(1, 1), (6, 6), (24, 7), (7, 24), (48, 49)]


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    ("counts", "num_shares"),
    [
        # each of both in every run, and half of the pairs
        pytest.param(counts, num_shares, marks=[pytest.mark.slow] if (i + j) % 2 else [])
        for i, counts in enumerate(EVEN + RAGGED)
        for j, num_shares in enumerate(NUM_SHARES)
    ],
)
def test_pieces_are_divided(
    counts: list[int], num_shares: tuple[int, int], device: torch.device
) -> None:
    rows = [(count * PIECE_LEN, 1) for count in counts]
    layout = layout_on(make_layout([[0] * length for length, _ in rows], rows, 1), device)
    work = plan_attention(layout, ShareCounts(*num_shares))
    firsts = [sum(counts[:row]) for row in range(len(counts))]
    borders = [*firsts, sum(counts)]

    shares: list[list[int]] = work.shares.tolist()
    owners: list[int] = work.rows[:, 3].tolist()

    assert len(shares) == max(num_shares)
    covered = [piece for start, end, *_ in shares for piece in range(start, end)]
    assert covered == list(range(sum(counts)))
    for start, end, row, _, *record in shares:
        assert start == end or borders[row] <= start < borders[row + 1]
        assert record == work.rows[row].tolist()
    inner = {start for start, end, *_ in shares if start < end} - set(firsts)
    split = [
        row
        for row, (first, behind) in enumerate(pairwise(borders))
        if any(first < start < behind for start in inner)
    ]
    assert len({owners[row] for row in split}) == len(split)
    used = num_shares[0] if counts in EVEN else num_shares[1]
    assert max(owners) < used
    assert sum(end > start for start, end, *_ in shares) <= used
    if counts in EVEN and len(counts) % used == 0:
        assert not split


@pytest.mark.parametrize(
    ("num_rows", "num_kv_heads", "of_rows"),
    [
        # whole rows, one or several a share
        (32, 8, 32), (33, 8, 33), (256, 8, 64), (8, 40, 8),
        # parts of rows, a power of two
        (8, 8, 64), (7, 8, 56), (1, 40, 8),
        # rows that no number of busy programs divides
        (64, 40, 13), (67, 8, 66),
    ],
)  # fmt: skip
def test_shares_suit_the_multiprocessors(num_rows: int, num_kv_heads: int, of_rows: int) -> None:
    counts = share_counts(132, num_rows, num_kv_heads, programs_per_sm=4)
    assert counts == ShareCounts(of_rows, 4 * 132 // num_kv_heads)
