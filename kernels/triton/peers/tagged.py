"""Sums of few rows: each word that is sent carries the number of its sum.

A word of 64 bits arrives as a whole, so a rank that waits for it needs no flag, and the sender no
fence between data and flag, which takes longer than the way over NVLink. The price is twice the
bytes. (The protocol LL of NCCL, arXiv:2507.04786.)
"""

import triton
import triton.language as tl

from kernels.triton.launch import let_next_start, wait_for_inputs
from kernels.triton.peers.finishing import (
    finish_row,
    load_gains,
    load_residual,
    load_table,
    place_in,
)


@triton.jit
def _send_row(x, table, start, rank, row, tag, words, num_words, SIZE: tl.constexpr,
              MAX_ROWS: tl.constexpr):  # fmt: skip
    """Write a row of this rank into the buffers of all others."""
    is_word = words < num_words
    values = tl.load(x + row * num_words + words, is_word, other=0)
    tagged = (tag.to(tl.int64) << 32) | (values.to(tl.int64) & 0xFFFFFFFF)
    place = (((tag & 1) * SIZE + rank) * MAX_ROWS + row).to(tl.int64) * num_words + words
    for step in tl.static_range(1, SIZE):
        peer = place_in(table, (rank + step) % SIZE, start, tl.int64)
        tl.store(peer + place, tagged, is_word)


@triton.jit
def _add_words(low, high, values, TYPE: tl.constexpr, HAS_PAIRS: tl.constexpr):
    """Add the two numbers of each word, or its only one, to float32 sums."""
    if HAS_PAIRS:
        low += values.to(tl.int16).to(TYPE, bitcast=True).to(tl.float32)
        high += (values >> 16).to(tl.int16).to(TYPE, bitcast=True).to(tl.float32)
    else:
        low += values.to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def _receive_row(x, table, start, rank, row, tag, words, num_words, TYPE: tl.constexpr,
                 HAS_PAIRS: tl.constexpr, SIZE: tl.constexpr, MAX_ROWS: tl.constexpr):  # fmt: skip
    """Wait for a row of all ranks and add them in their order."""
    is_word = words < num_words
    own = tl.load(x + row * num_words + words, is_word, other=0)
    nothing = tl.full(words.shape, 0, tl.int64) + (tag.to(tl.int64) << 32)
    inbox = place_in(table, rank, start, tl.int64)
    low, high = tl.zeros(words.shape, tl.float32), tl.zeros(words.shape, tl.float32)
    for source in tl.static_range(SIZE):
        is_awaited = is_word & (source != rank)
        place = (((tag & 1) * SIZE + source) * MAX_ROWS + row).to(tl.int64) * num_words + words
        tagged = tl.load(inbox + place, is_awaited, other=nothing, volatile=True)
        while tl.max(((tagged >> 32).to(tl.int32) != tag).to(tl.int32), axis=0) != 0:
            tagged = tl.load(inbox + place, is_awaited, other=nothing, volatile=True)
        values = tl.where(source == rank, own, tagged.to(tl.int32))
        low, high = _add_words(low, high, values, TYPE, HAS_PAIRS)
    return low, high


@triton.jit
def tagged_kernel(
    out,
    x,
    residual,
    weight,
    bias,
    addresses,
    counts,
    start,
    rank,
    num_rows,
    num_columns,
    num_words,
    eps,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_PAIRS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    SENDS: tl.constexpr,
    RECEIVES: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    """Sum rows over all ranks, with or without a norm behind.

    Args:
        x: [num_rows, num_words] int32, the words of this rank's rows.
        HAS_PAIRS: whether a word holds two numbers.
        counts: [MAX_ROWS] int32, how often each row has been summed.
        start: of the inbox in each rank's buffer: [2, SIZE, MAX_ROWS, num_words] int64.
        SENDS, RECEIVES: both, but where ranks take turns.
    """
    TYPE: tl.constexpr = out.dtype.element_ty
    words, columns = tl.arange(0, WORDS), tl.arange(0, BLOCK)
    is_column = columns < num_columns
    table = load_table(addresses, SIZE, LANES)
    scale, shift = load_gains(weight, bias, columns, is_column, NORM)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    first, num_programs = tl.program_id(0), tl.num_programs(0)
    if SENDS:
        for row in range(first, num_rows, num_programs):
            tag = tl.load(counts + row) + 1
            _send_row(x, table, start, rank, row, tag, words, num_words, SIZE, MAX_ROWS)
    if RECEIVES:
        for row in range(first, num_rows, num_programs):
            tag = tl.load(counts + row) + 1
            before = load_residual(residual, row, columns, is_column, num_columns, HAS_RESIDUAL)
            low, high = _receive_row(x, table, start, rank, row, tag, words, num_words,
                                     TYPE, HAS_PAIRS, SIZE, MAX_ROWS)  # fmt: skip
            total = tl.interleave(low, high) if HAS_PAIRS else low
            finish_row(out, residual, before, total, scale, shift, row, columns, is_column,
                       num_columns, eps, HAS_RESIDUAL, NORM)  # fmt: skip
            tl.store(counts + row, tag)
