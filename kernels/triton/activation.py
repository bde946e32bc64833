"""Elementwise activations; computed in float32 and rounded once. Twins: `kernels.reference`."""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import overlap, wait_for_inputs

_BLOCK = 1024
# sqrt(2 / pi), doubled because tanh(z) = 2 sigmoid(2 z) - 1
_GELU_SLOPE = tl.constexpr(1.5957691216057308)


@triton.jit
def _gelu(values):
    inner = values + 0.044715 * values * values * values
    return values * tl.sigmoid(inner * _GELU_SLOPE)


@triton.jit
def _gate_kernel(
    out,
    gate_up,
    gate_up_stride,
    num_columns,
    NAME: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < num_columns
    wait_for_inputs(OVERLAPPED)
    place = gate_up + row * gate_up_stride + columns
    gate = tl.load(place, is_column, other=0.0).to(tl.float32)
    up = tl.load(place + num_columns, is_column, other=0.0).to(tl.float32)
    product = (gate * tl.sigmoid(gate) if NAME == "silu" else _gelu(gate)) * up
    tl.store(out + row * num_columns + columns, product.to(out.dtype.element_ty), is_column)


@triton.jit
def _activate_kernel(
    out, x, size, cap, NAME: tl.constexpr, BLOCK: tl.constexpr, OVERLAPPED: tl.constexpr
):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_value = places < size
    wait_for_inputs(OVERLAPPED)
    values = tl.load(x + places, is_value, other=0.0).to(tl.float32)
    if NAME == "relu":
        # not a maximum, which would turn NaN into 0
        activated = tl.where(values < 0, 0.0, values)
    elif NAME == "softcap":
        # tanh(z) = 2 sigmoid(2 z) - 1
        activated = cap * (2 * tl.sigmoid(values * (2 / cap)) - 1)
    else:
        activated = _gelu(values)
    tl.store(out + places, activated.to(out.dtype.element_ty), is_value)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (SwiGLU, arXiv:2002.05202).

    Args:
        gate_up: [T, 2 * intermediate], rows contiguous: the gate's columns, then the up ones.

    Returns:
        [T, intermediate], contiguous.
    """
    return _gate(gate_up, "silu")


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, as `silu_mul`, with the tanh form of GELU."""
    return _gate(gate_up, "gelu")


def _gate(gate_up: Tensor, name: Literal["silu", "gelu"]) -> Tensor:
    num_rows, width = gate_up.shape
    assert width % 2 == 0
    assert gate_up.stride(1) == 1
    num_columns = width // 2
    out = torch.empty(num_rows, num_columns, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        grid = (num_rows, triton.cdiv(num_columns, _BLOCK))
        _gate_kernel[grid](
            out,
            gate_up,
            gate_up.stride(0),
            num_columns,
            NAME=name,
            BLOCK=_BLOCK,
            **overlap(out.device),
        )
    return out


def relu(x: Tensor) -> Tensor:
    """max(x, 0) of a contiguous tensor of any shape; NaN stays NaN."""
    return _activate(x, "relu")


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU (arXiv:1606.08415), of a contiguous tensor of any shape."""
    return _activate(x, "gelu")


def softcap(x: Tensor, cap: float) -> Tensor:
    """Cap * tanh(x / cap) of a contiguous tensor of any shape, IN PLACE; returns it."""
    return _activate(x, "softcap", cap=cap, out=x)


def _activate(
    x: Tensor,
    name: Literal["relu", "gelu", "softcap"],
    *,
    cap: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    assert x.is_contiguous()
    out = torch.empty_like(x) if out is None else out
    if x.numel():
        grid = (triton.cdiv(x.numel(), _BLOCK),)
        _activate_kernel[grid](out, x, x.numel(), cap, NAME=name, BLOCK=_BLOCK, **overlap(x.device))
    return out
