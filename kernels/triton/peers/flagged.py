"""Sums of more rows: data is sent as it is, and a flag for each row follows it.

In one shot every rank gets the row of every other one. In two, one rank gets and adds a row and
sends the sum to all, which moves 2 (n - 1) / n of the bytes instead of n - 1, in two ways over
NVLink instead of one. A flag is the number of its row's sum, which only rises.
"""

import triton
import triton.language as tl

from kernels.triton.launch import wait_for_inputs
from kernels.triton.peers.finishing import (
    finish_row,
    load_gains,
    load_residual,
    load_table,
    place_in,
    widened,
)


@triton.jit
def _raise_flags(table, start, to, rank, row, epoch, SIZE: tl.constexpr,
                 MAX_ROWS: tl.constexpr):  # fmt: skip
    """Show what all threads have written to the rank `to`, or to all others if it is -1."""
    tl.debug_barrier()
    lanes = tl.arange(0, table.shape[0])
    is_peer = (lanes < SIZE) & (lanes != rank) & ((lanes == to) | (to < 0))
    flags = (table + start).to(tl.pointer_type(tl.int32))
    tl.atomic_xchg(flags + rank * MAX_ROWS + row, epoch, is_peer, sem="release", scope="sys")


@triton.jit
def _await_flags(flags, of, rank, row, epoch, SIZE: tl.constexpr, LANES: tl.constexpr,
                 MAX_ROWS: tl.constexpr):  # fmt: skip
    """Wait until the rank `of` has written a row, or all others have if it is -1."""
    lanes = tl.arange(0, LANES)
    is_peer = (lanes < SIZE) & (lanes != rank) & ((lanes == of) | (of < 0))
    place = flags + lanes * MAX_ROWS + row
    found = tl.load(place, is_peer, other=0, volatile=True)
    # one that has gone on may have raised its flag again
    while tl.min(tl.where(is_peer, found - epoch, 0), axis=0) < 0:
        found = tl.load(place, is_peer, other=0, volatile=True)
    # a loop of atomic operations is more than Triton 3.7 can compile, and polls more slowly
    tl.atomic_add(place, 0, is_peer, sem="acquire", scope="sys")
    tl.debug_barrier()


@triton.jit
def _add_ranks(x, inbox, flags, rank, row, epoch, columns, is_column, num_columns,
               SIZE: tl.constexpr, LANES: tl.constexpr, MAX_ROWS: tl.constexpr):  # fmt: skip
    """Wait for a row of all ranks and add them in their order -> float32."""
    _await_flags(flags, -1, rank, row, epoch, SIZE, LANES, MAX_ROWS)
    own = tl.load(x + widened(row) * num_columns + columns, is_column, other=0.0)
    total = tl.zeros(columns.shape, tl.float32)
    for source in tl.static_range(SIZE):
        place = (((epoch & 1) * SIZE + source) * MAX_ROWS + row).to(tl.int64) * num_columns
        # written by another device, so not to be read through this multiprocessor's cache
        part = tl.load(inbox + place + columns, is_column & (source != rank), other=0.0,
                       cache_modifier=".cg")  # fmt: skip
        total += tl.where(source == rank, own, part).to(tl.float32)
    return total


@triton.jit
def _adder_of(row, rank, SIZE: tl.constexpr, IN_TWO: tl.constexpr):
    """The rank whose sum of a row this one takes."""
    return row % SIZE if IN_TWO else rank


@triton.jit
def _send_rows(x, table, counts, inbox_start, flags_start, rank, num_rows, columns, is_column,
               num_columns, SIZE: tl.constexpr, MAX_ROWS: tl.constexpr,
               IN_TWO: tl.constexpr):  # fmt: skip
    """Write all rows of this program into the buffers of those that add them."""
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        epoch = tl.load(counts + row) + 1
        _send_row(x, table, inbox_start, flags_start, rank, row, epoch, columns, is_column,
                  num_columns, SIZE, MAX_ROWS, IN_TWO)  # fmt: skip


@triton.jit
def _send_row(x, table, inbox_start, flags_start, rank, row, epoch, columns, is_column,
              num_columns, SIZE: tl.constexpr, MAX_ROWS: tl.constexpr,
              IN_TWO: tl.constexpr):  # fmt: skip
    """Write a row of this rank into the buffer of the rank that adds it, or of all others."""
    TYPE: tl.constexpr = x.dtype.element_ty
    adder = row % SIZE
    values = tl.load(x + widened(row) * num_columns + columns, is_column, other=0.0)
    place = (((epoch & 1) * SIZE + rank) * MAX_ROWS + row).to(tl.int64) * num_columns + columns
    if IN_TWO:
        if adder != rank:
            peer = place_in(table, adder, inbox_start, TYPE)
            tl.store(peer + place, values, is_column)
            _raise_flags(table, flags_start, adder, rank, row, epoch, SIZE, MAX_ROWS)
    else:
        for step in tl.static_range(1, SIZE):
            peer = place_in(table, (rank + step) % SIZE, inbox_start, TYPE)
            tl.store(peer + place, values, is_column)
        _raise_flags(table, flags_start, -1, rank, row, epoch, SIZE, MAX_ROWS)


@triton.jit
def _send_sum(total, table, sums_start, flags_start, rank, row, epoch, columns, is_column,
              num_columns, TYPE: tl.constexpr, SIZE: tl.constexpr, MAX_ROWS: tl.constexpr,
              IN_TWO: tl.constexpr):  # fmt: skip
    """Write the sum of a row into the buffers of all others, if they do not add it themselves."""
    if IN_TWO:
        place = ((epoch & 1) * MAX_ROWS + row).to(tl.int64) * num_columns + columns
        for step in tl.static_range(1, SIZE):
            peer = place_in(table, (rank + step) % SIZE, sums_start, TYPE)
            tl.store(peer + place, total.to(TYPE), is_column)
        _raise_flags(table, flags_start, -1, rank, row, epoch, SIZE, MAX_ROWS)


@triton.jit
def _receive_sum(sums, flags, adder, rank, row, epoch, columns, is_column, num_columns,
                 SIZE: tl.constexpr, LANES: tl.constexpr, MAX_ROWS: tl.constexpr):  # fmt: skip
    """Wait for the sum of a row that another rank has added -> float32."""
    _await_flags(flags, adder, rank, row, epoch, SIZE, LANES, MAX_ROWS)
    place = ((epoch & 1) * MAX_ROWS + row).to(tl.int64) * num_columns + columns
    return tl.load(sums + place, is_column, other=0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit
def flagged_kernel(
    out,
    x,
    residual,
    weight,
    bias,
    addresses,
    counts,
    inbox_start,
    sums_start,
    part_flags_start,
    sum_flags_start,
    rank,
    num_rows,
    num_columns,
    eps,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    IN_TWO: tl.constexpr,
    SENDS: tl.constexpr,
    ADDS: tl.constexpr,
    RECEIVES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    """Sum rows over all ranks, with or without a norm behind.

    Args:
        x: [num_rows, num_columns].
        counts: [MAX_ROWS] int32, how often each row has been summed.
        inbox_start, sums_start: in each rank's buffer: [2, SIZE, MAX_ROWS, num_columns] and
            [2, MAX_ROWS, num_columns], the type of x.
        part_flags_start, sum_flags_start: [SIZE, MAX_ROWS] int32 in each rank's buffer.
        IN_TWO: whether one rank adds a row for all.
        SENDS, ADDS, RECEIVES: all, but where ranks take turns.
    """
    TYPE: tl.constexpr = x.dtype.element_ty
    columns = tl.arange(0, BLOCK)
    is_column = columns < num_columns
    table = load_table(addresses, SIZE, LANES)
    scale, shift = load_gains(weight, bias, columns, is_column, NORM)
    inbox = place_in(table, rank, inbox_start, TYPE)
    sums = place_in(table, rank, sums_start, TYPE)
    part_flags = place_in(table, rank, part_flags_start, tl.int32)
    sum_flags = place_in(table, rank, sum_flags_start, tl.int32)
    wait_for_inputs(OVERLAPPED)
    first, num_programs = tl.program_id(0), tl.num_programs(0)
    if SENDS:
        _send_rows(x, table, counts, inbox_start, part_flags_start, rank, num_rows, columns,
                   is_column, num_columns, SIZE, MAX_ROWS, IN_TWO)  # fmt: skip
    if ADDS:
        for row in range(first, num_rows, num_programs):
            adder = _adder_of(row, rank, SIZE, IN_TWO)
            if adder == rank:
                epoch = tl.load(counts + row) + 1
                before = load_residual(residual, row, columns, is_column, num_columns, HAS_RESIDUAL)
                total = _add_ranks(x, inbox, part_flags, rank, row, epoch, columns, is_column,
                                   num_columns, SIZE, LANES, MAX_ROWS)  # fmt: skip
                _send_sum(total, table, sums_start, sum_flags_start, rank, row, epoch, columns,
                          is_column, num_columns, TYPE, SIZE, MAX_ROWS, IN_TWO)  # fmt: skip
                finish_row(out, residual, before, total, scale, shift, row, columns, is_column,
                           num_columns, eps, HAS_RESIDUAL, NORM)  # fmt: skip
                tl.store(counts + row, epoch)
    if RECEIVES:
        for row in range(first, num_rows, num_programs):
            adder = _adder_of(row, rank, SIZE, IN_TWO)
            if adder != rank:
                epoch = tl.load(counts + row) + 1
                before = load_residual(residual, row, columns, is_column, num_columns, HAS_RESIDUAL)
                total = _receive_sum(sums, sum_flags, adder, rank, row, epoch, columns, is_column,
                                     num_columns, SIZE, LANES, MAX_ROWS)  # fmt: skip
                finish_row(out, residual, before, total, scale, shift, row, columns, is_column,
                           num_columns, eps, HAS_RESIDUAL, NORM)  # fmt: skip
                tl.store(counts + row, epoch)
