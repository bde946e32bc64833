"""The first product of experts: gate and up matrix, and what comes of both."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.experts.gate_groups import gate_rows
from kernels.triton.experts.multiply import (
    block_of,
    blocks_of,
    fitted,
    multiply,
    weight_source,
)
from kernels.triton.experts.sort import SortedPairs
from kernels.triton.launch import let_next_start, wait_for_inputs
from kernels.triton.linear.tiles import Tile

# gpt-oss's slope of the gate
_SLOPE = tl.constexpr(1.702)


@triton.jit
def _gate_up_block(
    hidden,
    x,
    weight,
    bias,
    order,
    expert,
    start,
    end,
    num_outputs,
    num_columns,
    limit,
    TOP_K: tl.constexpr,
    IS_SORTED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_DESCRIPTORS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GATES: tl.constexpr,
):
    first_output = tl.program_id(0) * OUTPUTS
    places = start + tl.arange(0, ROWS)
    held = tl.minimum(places, end - 1)
    pairs = tl.load(order + held) if IS_SORTED else held
    sums = multiply(
        x,
        pairs // TOP_K,
        start,
        weight,
        expert * num_outputs + first_output,
        expert * num_outputs + num_outputs - 1,
        num_columns,
        HAS_DESCRIPTORS,
        False,
        IS_EVEN,
        ROWS,
        OUTPUTS,
        COLUMNS,
    )
    outputs = first_output + tl.arange(0, OUTPUTS)
    if HAS_BIAS:
        shift = tl.load(bias + expert * num_outputs + outputs, outputs < num_outputs, other=0.0)
        sums += shift.to(tl.float32)[:, None]
    groups = tl.reshape(sums, [OUTPUTS // (2 * GATES), 2, GATES, ROWS])
    gates, ups = tl.split(tl.permute(groups, 0, 2, 3, 1))
    if HAS_LIMIT:
        gates = tl.minimum(gates, limit)
        ups = tl.minimum(tl.maximum(ups, -limit), limit)
        products = gates * tl.sigmoid(gates * _SLOPE) * (ups + 1)
    else:
        products = gates * tl.sigmoid(gates) * ups
    products = tl.reshape(products.to(hidden.dtype.element_ty), [OUTPUTS // 2, ROWS])
    inner = first_output // 2 + tl.arange(0, OUTPUTS // 2)
    is_inside = (places < end)[:, None] & (inner < num_outputs // 2)[None, :]
    targets = places.to(tl.int64)[:, None] * (num_outputs // 2) + inner[None, :]
    tl.store(hidden + targets, tl.trans(products), is_inside)


@triton.jit
def _gate_up_kernel(
    hidden,
    x,
    weight,
    bias,
    order,
    blocks,
    first_expert,
    num_experts,
    num_outputs,
    num_columns,
    limit,
    TOP_K: tl.constexpr,
    IS_SORTED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
    HAS_DESCRIPTORS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    FEW: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GATES: tl.constexpr,
    WORDS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, True)
    expert, start, end = block_of(blocks, first_expert, num_experts, IS_SORTED, WORDS)
    # two loops, as the shape of a tile is known when it is compiled
    for is_few in tl.static_range(2 if FEW > 0 else 1):
        if expert >= 0 and (end - start <= FEW) == is_few:
            _gate_up_block(
                hidden,
                x,
                weight,
                bias,
                order,
                expert,
                start,
                end,
                num_outputs,
                num_columns,
                limit,
                TOP_K,
                IS_SORTED,
                HAS_BIAS,
                HAS_LIMIT,
                HAS_DESCRIPTORS,
                IS_EVEN,
                FEW if is_few else ROWS,
                OUTPUTS,
                COLUMNS,
                GATES,
            )


def gate_up_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pairs: SortedPairs | Tensor,
    top_k: int,
    first_expert: int,
    tile: Tile,
    few: int = 0,
    *,
    limit: float = 0.0,
) -> Tensor:
    """Compute silu(x @ gate.T) * (x @ up.T) for pairs of a token and an expert.

    Args:
        x: [T, hidden], contiguous.
        weight: [held, 2 * intermediate, hidden], contiguous, see `in_groups`; `bias` likewise;
            `limit`: see `kernels.experts.ExpertWeights`.
        pairs: sorted, or the ids [T, top_k] of few tokens.
        tile: outputs of both matrices together; rows as those of the blocks.
        few: rows of another tile, for blocks of at most so many pairs; 0: there is none.

    Returns:
        [T * top_k, intermediate], by place; rows of experts elsewhere are not written.
    """
    num_experts, num_outputs, num_columns = weight.shape
    hidden = x.new_empty(len(x) * top_k, num_outputs // 2)
    order, blocks, num_blocks = blocks_of(pairs)
    tile, options = fitted(tile, few, weight)
    grid = (triton.cdiv(num_outputs, tile.outputs), num_blocks)
    _gate_up_kernel[grid](
        hidden,
        x,
        weight_source(weight, tile, has_descriptors=options["HAS_DESCRIPTORS"]),
        bias,
        order,
        blocks,
        first_expert,
        num_experts,
        num_outputs,
        num_columns,
        limit,
        TOP_K=top_k,
        IS_SORTED=isinstance(pairs, SortedPairs),
        HAS_BIAS=bias is not None,
        HAS_LIMIT=limit > 0,
        GATES=gate_rows(num_outputs // 2),
        **options,
    )
    return hidden
