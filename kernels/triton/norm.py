"""Norms over the hidden dimension, with or without the residual added before.

One program per row and one block per row whatever the number of rows, so the bits of a row do not
depend on its batch. Statistics are in float32. Twins: `kernels.reference`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import are_few, let_next_start, overlap, wait_for_inputs

# a row lives in registers: 64 KiB of float32 is a quarter of a multiprocessor's
_MAX_COLUMNS = 16384


@triton.jit
def _load_row(
    x, residual, row, columns, is_column, x_stride, num_columns, HAS_RESIDUAL: tl.constexpr
):
    """A row as float32; with a residual the rounded sum, which is also written back."""
    values = tl.load(x + row * x_stride + columns, is_column, other=0.0)
    if HAS_RESIDUAL:
        place = residual + row * num_columns + columns
        wide = values.to(tl.float32) + tl.load(place, is_column, other=0.0).to(tl.float32)
        values = wide.to(x.dtype.element_ty)
        tl.store(place, values, is_column)
    return values.to(tl.float32)


@triton.jit
def _rms_norm_kernel(
    out,
    x,
    residual,
    weight,
    x_stride,
    num_columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < num_columns
    # weights are never written while a model runs, so their way from memory overlaps the wait
    scale = tl.load(weight + columns, is_column, other=0.0).to(tl.float32)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    values = _load_row(x, residual, row, columns, is_column, x_stride, num_columns, HAS_RESIDUAL)
    mean_square = tl.sum(values * values, axis=0) / num_columns
    normed = values * tl.rsqrt(mean_square + eps) * scale
    tl.store(out + row * num_columns + columns, normed.to(out.dtype.element_ty), is_column)


@triton.jit
def _layer_norm_kernel(
    out,
    x,
    residual,
    weight,
    bias,
    x_stride,
    num_columns,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < num_columns
    scale = tl.load(weight + columns, is_column, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, is_column, other=0.0).to(tl.float32)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    values = _load_row(x, residual, row, columns, is_column, x_stride, num_columns, HAS_RESIDUAL)
    mean = tl.sum(values, axis=0) / num_columns
    centred = tl.where(is_column, values - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / num_columns
    normed = centred * tl.rsqrt(variance + eps) * scale + shift
    tl.store(out + row * num_columns + columns, normed.to(out.dtype.element_ty), is_column)


@triton.jit
def _mean_squares_kernel(
    means,
    x,
    x_stride,
    first,
    second,
    BLOCK: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row, is_second = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.where(is_second == 1, second, first)
    columns = tl.arange(0, BLOCK)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    place = x + row * x_stride + is_second * first + columns
    values = tl.load(place, columns < count, other=0.0).to(tl.float32)
    tl.store(means + row * 2 + is_second, tl.sum(values * values, axis=0) / count)


def mean_squares(x: Tensor, first: int, second: int) -> Tensor:
    """Mean squares of columns [0, first) and [first, first + second).

    Args:
        x: [T, n], rows contiguous.

    Returns:
        [T, 2] float32.
    """
    assert x.stride(1) == 1
    assert max(first, second) <= _MAX_COLUMNS
    means = torch.empty(len(x), 2, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(max(first, second))
    if len(x):
        _mean_squares_kernel[(len(x), 2)](
            means,
            x,
            x.stride(0),
            first,
            second,
            BLOCK=block,
            HAS_FEW_ROWS=are_few(len(x)),
            num_warps=min(max(block // 512, 1), 16),
            **overlap(x.device),
        )
    return means


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (arXiv:1910.07467).

    Args:
        x: [T, hidden], rows contiguous.
        weight: [hidden], any float dtype.

    Returns:
        [T, hidden], contiguous, the dtype of x.
    """
    return _normalise(x, None, weight, None, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add x to `residual` [T, hidden], contiguous, IN PLACE and norm the sum; see `rms_norm`."""
    return _normalise(x, residual, weight, None, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm (arXiv:1607.06450).

    Args:
        x: [T, hidden], rows contiguous.
        weight, bias: [hidden], any float dtype.

    Returns:
        [T, hidden], contiguous, the dtype of x.
    """
    return _normalise(x, None, weight, bias, eps)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Add x to `residual` [T, hidden], contiguous, IN PLACE and norm the sum; see `layer_norm`."""
    return _normalise(x, residual, weight, bias, eps)


def _normalise(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    num_rows, num_columns = x.shape
    assert x.stride(1) == 1
    assert weight.shape == (num_columns,)
    assert bias is None or bias.shape == (num_columns,)
    assert num_columns <= _MAX_COLUMNS, f"a row of {num_columns} does not fit the registers"
    if residual is not None:
        assert residual.shape == x.shape
        assert residual.dtype == x.dtype
        assert residual.is_contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    block = triton.next_power_of_2(num_columns)
    vectors = (weight,) if bias is None else (weight, bias)
    kernel = _rms_norm_kernel if bias is None else _layer_norm_kernel
    kernel[(num_rows,)](
        out,
        x,
        residual,
        *vectors,
        x.stride(0),
        num_columns,
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        HAS_FEW_ROWS=are_few(num_rows),
        num_warps=min(max(block // 512, 1), 16),
        **overlap(x.device),
    )
    return out
