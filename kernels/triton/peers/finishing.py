"""What both kernels of sums do: find places in the ranks' buffers, and finish a row."""

import triton
import triton.language as tl


@triton.jit
def widened(number):
    """A number of 64 bits; in the interpreter loops count in Python's."""
    return tl.zeros([], tl.int64) + number


@triton.jit
def load_table(addresses, SIZE: tl.constexpr, LANES: tl.constexpr):
    """The addresses of all ranks' buffers, kept in registers -> [LANES] int64."""
    lanes = tl.arange(0, LANES)
    return tl.load(addresses + lanes, lanes < SIZE, other=0)


@triton.jit
def place_in(table, rank, start, TYPE: tl.constexpr):
    """Pointer to the byte `start`, a multiple of 16, of a rank's buffer."""
    lanes = tl.arange(0, table.shape[0])
    address = tl.sum(tl.where(lanes == rank, table, 0), axis=0) + start
    return tl.multiple_of(address.to(tl.pointer_type(TYPE)), 16)


@triton.jit
def load_gains(weight, bias, columns, is_column, NORM: tl.constexpr):
    """Weight and bias of a norm as float32; zeros where it has none."""
    scale = tl.zeros(columns.shape, tl.float32)
    shift = tl.zeros(columns.shape, tl.float32)
    if NORM != "none":
        scale = tl.load(weight + columns, is_column, other=0.0).to(tl.float32)
    if NORM == "layer":
        shift = tl.load(bias + columns, is_column, other=0.0).to(tl.float32)
    return scale, shift


@triton.jit
def load_residual(residual, row, columns, is_column, num_columns, HAS_RESIDUAL: tl.constexpr):
    """A row of the residual as float32, which arrives while others are waited for."""
    values = tl.zeros(columns.shape, tl.float32)
    if HAS_RESIDUAL:
        place = residual + widened(row) * num_columns + columns
        values = tl.load(place, is_column, other=0.0).to(tl.float32)
    return values


@triton.jit
def finish_row(
    out,
    residual,
    before,
    total,
    scale,
    shift,
    row,
    columns,
    is_column,
    num_columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
):
    """Round a sum, add it to the residual row IN PLACE, norm that, and store what comes out.

    Args:
        before: the residual row, see `load_residual`.
    """
    place = widened(row) * num_columns + columns
    values = total.to(out.dtype.element_ty)
    if HAS_RESIDUAL:
        values = (values.to(tl.float32) + before).to(out.dtype.element_ty)
        tl.store(residual + place, values, is_column)
    if NORM != "none":
        centred = tl.where(is_column, values.to(tl.float32), 0.0)
        if NORM == "layer":
            mean = tl.sum(centred, axis=0) / num_columns
            centred = tl.where(is_column, centred - mean, 0.0)
        variance = tl.sum(centred * centred, axis=0) / num_columns
        values = (centred * tl.rsqrt(variance + eps) * scale + shift).to(out.dtype.element_ty)
    tl.store(out + place, values, is_column)
