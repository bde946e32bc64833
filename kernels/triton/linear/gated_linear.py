"""Gated linear layers, silu(x @ gate.T) * (x @ up.T), in one kernel for small batches (SwiGLU).

A program multiplies by as many rows of the gate as of the up matrix, so that nothing but what comes
of both is written. The first product of a feed-forward network is the largest of a layer: at 8 rows
of Llama-3-8B's one kernel takes 82.2 us on an H100 instead of 84.3, at 128 rows 92.5 instead of
96.8.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import Activation
from kernels.triton.activation import gelu_mul, silu_mul
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.linear.tiles import Tile, described
from kernels.triton.linear.triton_linear import TritonLinear

# the fastest of three or more for 4096 x 28672 on an H100, outputs counted once for each half; on
# an H200 32 rows take 59.4 us, in tiles of 64 rows 71.3; at 192 rows and more cuBLAS and a second
# kernel are as fast or faster
_TILES = [
    Tile(16, 64, 128, 4, 4),
    Tile(32, 64, 128, 4, 4),
    Tile(64, 64, 128, 3, 4),
    Tile(128, 64, 64, 3, 4),
]
# outputs that give each multiprocessor a tile
_LEAST_OUTPUTS = 7680


@triton.jit(do_not_specialize=["num_rows"])
def _gated_kernel(
    out,
    x,
    weight,
    num_rows,
    num_outputs,
    num_columns,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    first_row, first_output = tl.program_id(0) * ROWS, tl.program_id(1) * OUTPUTS
    gates = tl.zeros([OUTPUTS, ROWS], tl.float32)
    ups = tl.zeros([OUTPUTS, ROWS], tl.float32)
    wait_for_inputs(OVERLAPPED)
    for column in range(0, num_columns, COLUMNS):
        inputs = x.load([first_row, column]).T
        gates = tl.dot(weight.load([first_output, column]), inputs, gates)
        ups = tl.dot(weight.load([num_outputs + first_output, column]), inputs, ups)
    # rounded as if they had been stored between
    element = out.dtype.element_ty
    gates, ups = gates.to(element).to(tl.float32), ups.to(element).to(tl.float32)
    products = tl.trans(gates * tl.sigmoid(gates) * ups)
    rows = first_row + tl.arange(0, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    is_inside = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    places = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(out + places, products.to(element), is_inside)


def gated_product(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """Multiply by both halves of a weight, and the second product by silu of the first.

    Args:
        x: [T, in_features], contiguous, float16 or bfloat16; in_features a multiple of 8.
        weight: [2 * intermediate, in_features], contiguous, the same dtype: gate, then up.
        tile: outputs of each half.

    Returns:
        [T, intermediate], the same dtype.
    """
    num_rows, num_columns = x.shape
    num_outputs = len(weight) // 2
    assert weight.shape == (2 * num_outputs, num_columns)
    assert num_columns % 8 == 0
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    grid = (triton.cdiv(num_rows, tile.rows), triton.cdiv(num_outputs, tile.outputs))
    _gated_kernel[grid](
        out,
        described(x, tile.rows, tile.columns),
        described(weight, tile.outputs, tile.columns),
        num_rows,
        num_outputs,
        num_columns,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        COLUMNS=tile.columns,
        num_stages=tile.num_stages,
        num_warps=tile.num_warps,
        **overlap(x.device),
    )
    return out


class TritonGatedLinear:
    """See `kernels.backend.KernelBackend.make_gated_linear`."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, activation: Activation = "silu"
    ) -> None:
        """Take a weight [2 * intermediate, in_features]: gate, then up."""
        self._weight = weight
        self._linear = TritonLinear(weight, bias)
        self._gate = {"silu": silu_mul, "gelu": gelu_mul}[activation]
        num_outputs, num_columns = weight.shape[0] // 2, weight.shape[1]
        # the kernel is made for large matrices, and for the copy engine of Hopper
        self._is_fused = (
            bias is None
            and activation == "silu"
            and num_outputs >= _LEAST_OUTPUTS
            and num_columns % 8 == 0
            and weight.dtype in (torch.bfloat16, torch.float16)
            and overlap(weight.device)["OVERLAPPED"]
        )

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute silu(x @ gate.T) * (x @ up.T); see `kernels.backend.Linear`."""
        if self._is_fused and not is_deterministic:
            for tile in _TILES:
                if len(x) <= tile.rows:
                    return gated_product(x, self._weight, tile)
        return self._gate(self._linear(x, is_deterministic=is_deterministic))
