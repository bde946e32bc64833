"""Puts pairs of a token and one of its experts in the order of the experts, in blocks of few rows.

One launch, without atomics: the order of the pairs of an expert is that of the tokens. The number
of blocks that are laid out depends on shapes only, so that a captured graph replays with other
choices; those beyond the ones needed name no expert.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import are_few, let_next_start, overlap, wait_for_inputs

# pairs that are looked at together
_CHUNK = 2048
# integers of a block: its expert, or -1, and which pairs are its own
BLOCK_WORDS = tl.constexpr(4)


@dataclass(frozen=True, slots=True)
class SortedPairs:
    """Pairs of a step in the order of their experts.

    Attributes:
        order: [pairs] int32, the pairs: token * top_k + slot. Those of experts that this rank does
            not hold are left out, so the last places may hold anything.
        blocks: [blocks, 4] int32: expert as it is held here or -1, first place, end of the places.
        rows: most places of a block.
    """

    order: Tensor
    blocks: Tensor
    rows: int


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def _sort_kernel(
    order,
    blocks,
    ids,
    num_pairs,
    num_blocks,
    first_expert,
    num_experts,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    WORDS: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    expert = tl.program_id(0)
    bins = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    for first in range(0, num_pairs, CHUNK):
        pairs = first + tl.arange(0, CHUNK)
        held = tl.load(ids + pairs, pairs < num_pairs, other=-1) - first_expert
        is_held = (pairs < num_pairs) & (held >= 0) & (held < num_experts)
        counts += tl.histogram(tl.where(is_held, held, 0), EXPERTS, mask=is_held)
    count = tl.sum(tl.where(bins == expert, counts, 0))
    start = tl.sum(tl.where(bins < expert, counts, 0))
    needed = (counts + ROWS - 1) // ROWS
    first_block = tl.sum(tl.where(bins < expert, needed, 0))
    end_block = first_block + (count + ROWS - 1) // ROWS
    # the last program also writes the blocks that nobody needs
    last_block = tl.where(expert == num_experts - 1, num_blocks, end_block)
    for first in range(first_block, last_block, EXPERTS):
        places = first + bins
        is_mine = places < end_block
        row = blocks + places * WORDS
        first_row = start + (places - first_block) * ROWS
        tl.store(row, tl.where(is_mine, expert, -1), places < last_block)
        tl.store(row + 1, first_row, is_mine)
        tl.store(row + 2, tl.minimum(first_row + ROWS, start + count), is_mine)
    for first in range(0, num_pairs, CHUNK):
        pairs = first + tl.arange(0, CHUNK)
        is_mine = tl.load(ids + pairs, pairs < num_pairs, other=-1) == first_expert + expert
        behind = tl.cumsum(is_mine.to(tl.int32), 0)
        tl.store(order + start + behind - 1, pairs, is_mine)
        start += tl.sum(is_mine.to(tl.int32))


def sort_pairs(ids: Tensor, first_expert: int, num_experts: int, rows: int) -> SortedPairs:
    """Sort pairs by their experts.

    Args:
        ids: [T, top_k] int32, contiguous.
        first_expert: of those that this rank holds, `num_experts` in a row.
        rows: most pairs of a block.
    """
    assert ids.is_contiguous()
    num_pairs = ids.numel()
    num_blocks = most_blocks(num_pairs, num_experts, rows)
    order = torch.empty(num_pairs, dtype=torch.int32, device=ids.device)
    blocks = torch.empty(num_blocks, BLOCK_WORDS.value, dtype=torch.int32, device=ids.device)
    _sort_kernel[(num_experts,)](
        order,
        blocks,
        ids,
        num_pairs,
        num_blocks,
        first_expert,
        num_experts,
        ROWS=rows,
        EXPERTS=max(triton.next_power_of_2(num_experts), 16),
        CHUNK=min(max(triton.next_power_of_2(num_pairs), 64), _CHUNK),
        WORDS=BLOCK_WORDS,
        HAS_FEW_ROWS=are_few(len(ids)),
        **overlap(ids.device),
    )
    return SortedPairs(order, blocks, rows)


def most_blocks(num_pairs: int, num_experts: int, rows: int) -> int:
    """How many blocks any choice of experts can need: each expert may have one that is not full."""
    num_hit = min(num_pairs, num_experts)
    return num_hit + (num_pairs - num_hit) // rows
