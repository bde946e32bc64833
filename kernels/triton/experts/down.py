"""The second product of experts, weighted as the router says."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.experts.multiply import (
    block_of,
    blocks_of,
    fitted,
    multiply,
    weight_source,
)
from kernels.triton.experts.sort import SortedPairs
from kernels.triton.launch import let_next_start, wait_for_inputs
from kernels.triton.linear.tiles import Tile, described


@triton.jit
def _down_block(
    parts,
    hidden,
    weight,
    bias,
    pair_weights,
    order,
    expert,
    start,
    end,
    num_outputs,
    num_columns,
    IS_SORTED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_DESCRIPTORS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first_output = tl.program_id(0) * OUTPUTS
    places = start + tl.arange(0, ROWS)
    held = tl.minimum(places, end - 1)
    sums = multiply(
        hidden,
        held,
        start,
        weight,
        expert * num_outputs + first_output,
        expert * num_outputs + num_outputs - 1,
        num_columns,
        HAS_DESCRIPTORS,
        True,
        IS_EVEN,
        ROWS,
        OUTPUTS,
        COLUMNS,
    )
    outputs = first_output + tl.arange(0, OUTPUTS)
    if HAS_BIAS:
        shift = tl.load(bias + expert * num_outputs + outputs, outputs < num_outputs, other=0.0)
        sums += shift.to(tl.float32)[:, None]
    pairs = tl.load(order + held) if IS_SORTED else held
    sums *= tl.load(pair_weights + pairs)[None, :]
    is_inside = (places < end)[:, None] & (outputs < num_outputs)[None, :]
    targets = pairs.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    tl.store(parts + targets, tl.trans(sums.to(parts.dtype.element_ty)), is_inside)


@triton.jit
def _down_kernel(
    parts,
    hidden,
    few_hidden,
    weight,
    bias,
    pair_weights,
    order,
    blocks,
    first_expert,
    num_experts,
    num_outputs,
    num_columns,
    IS_SORTED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_DESCRIPTORS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    FEW: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WORDS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, True)
    expert, start, end = block_of(blocks, first_expert, num_experts, IS_SORTED, WORDS)
    # two loops, as the shape of a tile is known when it is compiled
    for is_few in tl.static_range(2 if FEW > 0 else 1):
        if expert >= 0 and (end - start <= FEW) == is_few:
            _down_block(
                parts,
                few_hidden if is_few else hidden,
                weight,
                bias,
                pair_weights,
                order,
                expert,
                start,
                end,
                num_outputs,
                num_columns,
                IS_SORTED,
                HAS_BIAS,
                HAS_DESCRIPTORS,
                IS_EVEN,
                FEW if is_few else ROWS,
                OUTPUTS,
                COLUMNS,
            )


def down_product(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: SortedPairs | Tensor,
    pair_weights: Tensor,
    first_expert: int,
    tile: Tile,
    few: int = 0,
) -> Tensor:
    """Multiply what `gate_up_product` returns by the second matrix of experts, and weight it.

    Args:
        weight: [held, hidden, intermediate], contiguous.
        pair_weights: [T, top_k] float32.
        tile, few: see `gate_up_product`.

    Returns:
        [T * top_k, hidden], by pair; rows of experts elsewhere are not written.
    """
    num_experts, num_outputs, num_columns = weight.shape
    parts = hidden.new_empty(len(hidden), num_outputs)
    order, blocks, num_blocks = blocks_of(pairs)
    tile, options = fitted(tile, few, weight)
    has_descriptors = options["HAS_DESCRIPTORS"]
    grid = (triton.cdiv(num_outputs, tile.outputs), num_blocks)
    _down_kernel[grid](
        parts,
        described(hidden, tile.rows, tile.columns) if has_descriptors else hidden,
        described(hidden, few or tile.rows, tile.columns) if has_descriptors else hidden,
        weight_source(weight, tile, has_descriptors=has_descriptors),
        bias,
        pair_weights,
        order,
        blocks,
        first_expert,
        num_experts,
        num_outputs,
        num_columns,
        IS_SORTED=isinstance(pairs, SortedPairs),
        HAS_BIAS=bias is not None,
        **options,
    )
    return parts
