"""Puts pairs of a token and one of its experts in the order of the experts, in blocks of few rows.

Without atomics: the order of the pairs of an expert is that of the tokens. The number of blocks
that are laid out depends on shapes only, so that a captured graph replays with other choices; those
beyond the ones needed name no expert. A decode takes one launch, whose programs each count all
pairs for themselves; a prompt takes two, and the second one reads what the first has counted.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import let_next_start, overlap, wait_for_inputs

# pairs that a program looks at
_CHUNK = 2048
# chunks whose counts are added up together
_COUNTED = tl.constexpr(16)
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


@triton.jit
def _count(held, is_held, EXPERTS: tl.constexpr):
    """How many pairs each expert has: [EXPERTS] int32."""
    return tl.histogram(tl.where(is_held, held, 0), EXPERTS, mask=is_held)


@triton.jit
def _load_experts(ids, first, num_pairs, first_expert, num_experts, CHUNK: tl.constexpr):
    """Experts of the pairs of a chunk, as they are held here, and which are held: [CHUNK]."""
    pairs = first + tl.arange(0, CHUNK)
    held = tl.load(ids + pairs, pairs < num_pairs, other=-1) - first_expert
    return held, (pairs < num_pairs) & (held >= 0) & (held < num_experts)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    counts,
    ids,
    num_pairs,
    first_expert,
    num_experts,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    chunk = tl.program_id(0)
    wait_for_inputs(OVERLAPPED)
    held, is_held = _load_experts(ids, chunk * CHUNK, num_pairs, first_expert, num_experts, CHUNK)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), _count(held, is_held, EXPERTS))


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def _sort_kernel(
    order,
    blocks,
    counts,
    ids,
    num_pairs,
    num_blocks,
    first_expert,
    num_experts,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    COUNTED: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    WORDS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    expert, chunk = tl.program_id(0), tl.program_id(1)
    bins = tl.arange(0, EXPERTS)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, True)
    held, is_held = _load_experts(ids, chunk * CHUNK, num_pairs, first_expert, num_experts, CHUNK)
    # pairs of earlier chunks with the same expert
    before = 0
    if HAS_COUNTS:
        num_chunks = tl.num_programs(1)
        totals = tl.zeros([EXPERTS], tl.int32)
        for first in range(0, num_chunks, COUNTED):
            chunks = first + tl.arange(0, COUNTED)
            places = counts + chunks[:, None] * EXPERTS + bins[None, :]
            some = tl.load(places, (chunks < num_chunks)[:, None], other=0)
            totals += tl.sum(some, 0)
            is_before = (chunks < chunk)[:, None] & (bins == expert)[None, :]
            before += tl.sum(tl.sum(tl.where(is_before, some, 0), 0), 0)
    else:
        totals = _count(held, is_held, EXPERTS)
    count = tl.sum(tl.where(bins == expert, totals, 0))
    start = tl.sum(tl.where(bins < expert, totals, 0))
    if chunk == 0:
        needed = (totals + ROWS - 1) // ROWS
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
    is_mine = is_held & (held == expert)
    rank = tl.cumsum(is_mine.to(tl.int32), 0) - 1
    pairs = chunk * CHUNK + tl.arange(0, CHUNK)
    tl.store(order + start + before + rank, pairs, is_mine)


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
    padded = max(triton.next_power_of_2(num_experts), 16)
    chunk = min(max(triton.next_power_of_2(num_pairs), 64), _CHUNK)
    num_chunks = triton.cdiv(num_pairs, chunk)
    options = overlap(ids.device)
    counts = order
    if num_chunks > 1:
        counts = torch.empty(num_chunks, padded, dtype=torch.int32, device=ids.device)
        _count_kernel[(num_chunks,)](
            counts,
            ids,
            num_pairs,
            first_expert,
            num_experts,
            EXPERTS=padded,
            CHUNK=chunk,
            **options,
        )
    _sort_kernel[num_experts, num_chunks](
        order,
        blocks,
        counts,
        ids,
        num_pairs,
        num_blocks,
        first_expert,
        num_experts,
        ROWS=rows,
        EXPERTS=padded,
        CHUNK=chunk,
        COUNTED=_COUNTED,
        HAS_COUNTS=num_chunks > 1,
        WORDS=BLOCK_WORDS,
        **options,
    )
    return SortedPairs(order, blocks, rows)


def most_blocks(num_pairs: int, num_experts: int, rows: int) -> int:
    """How many blocks any choice of experts can need: each expert may have one that is not full."""
    num_hit = min(num_pairs, num_experts)
    return num_hit + (num_pairs - num_hit) // rows
