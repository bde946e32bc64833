"""The two products of experts, of the pairs of a token and an expert.

Weights are multiplied by inputs, not inputs by weights, so that the rows of the weight fill the 64
rows of Hopper's matrix instruction (wgmma) where an expert has few tokens. A sum over columns is
never split: a row has the same bits in every batch, whatever the tile.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.experts.gate_groups import gate_rows
from kernels.triton.experts.sort import BLOCK_WORDS, SortedPairs
from kernels.triton.launch import let_next_start, overlap, shared_bytes, wait_for_inputs
from kernels.triton.linear.tiles import Tile, described

_STARTS_NEXT = True
# gpt-oss's slope of the gate
_SLOPE = tl.constexpr(1.702)


@triton.jit
def _block_of(blocks, first_expert, num_experts, IS_SORTED: tl.constexpr, WORDS: tl.constexpr):
    """Expert or -1, first place and end of the places of this program's block.

    Unsorted, each pair is a block, and `blocks` are the ids of all pairs.
    """
    block = tl.program_id(1)
    if IS_SORTED:
        row = blocks + block * WORDS
        expert = tl.load(row)
        start, end = tl.load(row + 1), tl.load(row + 2)
    else:
        expert = tl.load(blocks + block) - first_expert
        expert = tl.where(expert < num_experts, expert, -1)
        start, end = block, block + 1
    return expert, start, end


@triton.jit
def _multiply(
    x,
    rows,
    first_row,
    weight,
    first_output,
    last_output,
    num_columns,
    HAS_DESCRIPTORS: tl.constexpr,
    HAS_ROWS_IN_A_ROW: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Outputs from one on of some rows of x: [OUTPUTS, ROWS] float32.

    The copy engine loads what is described to it: the weight, and x where its rows follow on each
    other; what comes behind them in a tile is multiplied too and not stored.
    """
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    columns = tl.arange(0, COLUMNS)
    IS_DESCRIBED: tl.constexpr = HAS_DESCRIPTORS and HAS_ROWS_IN_A_ROW
    if not IS_DESCRIBED:
        x_places = x + rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
    if not HAS_DESCRIPTORS:
        # what lies beyond the end repeats the last one; its results are not stored
        outputs = tl.minimum(first_output + tl.arange(0, OUTPUTS), last_output).to(tl.int64)
        weight_places = weight + outputs[:, None] * num_columns + columns[None, :]
    for column in range(0, num_columns, COLUMNS):
        is_column = (column + columns)[None, :] < num_columns
        if HAS_DESCRIPTORS:
            weights = weight.load([first_output, column])
        elif IS_EVEN:
            weights = tl.load(weight_places)
        else:
            weights = tl.load(weight_places, is_column, other=0.0)
        if IS_DESCRIBED:
            inputs = x.load([first_row, column])
        elif IS_EVEN:
            inputs = tl.load(x_places)
        else:
            inputs = tl.load(x_places, is_column, other=0.0)
        sums = tl.dot(weights, inputs.T, sums, input_precision="ieee")
        if not HAS_DESCRIPTORS:
            weight_places += COLUMNS
        if not IS_DESCRIBED:
            x_places += COLUMNS
    return sums


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
    sums = _multiply(
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
    STARTS_NEXT: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, STARTS_NEXT)
    expert, start, end = _block_of(blocks, first_expert, num_experts, IS_SORTED, WORDS)
    if expert >= 0:
        # two loops, as the shape of a tile is known when it is compiled
        if end - start > FEW:
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
                ROWS,
                OUTPUTS,
                COLUMNS,
                GATES,
            )
        elif FEW > 0:
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
                FEW,
                OUTPUTS,
                COLUMNS,
                GATES,
            )


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
    sums = _multiply(
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
    STARTS_NEXT: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, STARTS_NEXT)
    expert, start, end = _block_of(blocks, first_expert, num_experts, IS_SORTED, WORDS)
    if expert >= 0:
        if end - start > FEW:
            _down_block(
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
                IS_SORTED,
                HAS_BIAS,
                HAS_DESCRIPTORS,
                IS_EVEN,
                ROWS,
                OUTPUTS,
                COLUMNS,
            )
        elif FEW > 0:
            _down_block(
                parts,
                few_hidden,
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
                FEW,
                OUTPUTS,
                COLUMNS,
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
    order, blocks, num_blocks = _blocks(pairs)
    tile, options = _fitted(tile, few, weight)
    grid = (triton.cdiv(num_outputs, tile.outputs), num_blocks)
    _gate_up_kernel[grid](
        hidden,
        x,
        _weight(weight, tile, has_descriptors=options["HAS_DESCRIPTORS"]),
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
    order, blocks, num_blocks = _blocks(pairs)
    tile, options = _fitted(tile, few, weight)
    has_descriptors = options["HAS_DESCRIPTORS"]
    grid = (triton.cdiv(num_outputs, tile.outputs), num_blocks)
    _down_kernel[grid](
        parts,
        described(hidden, tile.rows, tile.columns) if has_descriptors else hidden,
        described(hidden, few or tile.rows, tile.columns) if has_descriptors else hidden,
        _weight(weight, tile, has_descriptors=has_descriptors),
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


def _blocks(pairs: SortedPairs | Tensor) -> tuple[Tensor, Tensor, int]:
    """Order, blocks and their number; unsorted pairs are blocks themselves."""
    if isinstance(pairs, SortedPairs):
        return pairs.order, pairs.blocks, len(pairs.blocks)
    return pairs, pairs, pairs.numel()


def _fitted(tile: Tile, few: int, weight: Tensor) -> tuple[Tile, dict[str, object]]:
    """The tile that fits into shared memory, and constants of a launch with it."""
    options: dict[str, object] = dict(overlap(weight.device))
    num_columns = weight.shape[2]
    # the copy engine of Hopper wants rows that begin at multiples of 16 bytes
    has_descriptors = bool(options["OVERLAPPED"]) and num_columns % 8 == 0
    tile = tile.fitted(
        shared_bytes(weight.device),
        has_descriptors=has_descriptors,
        value_bytes=weight.element_size(),
    )
    options |= {
        "HAS_DESCRIPTORS": has_descriptors,
        "IS_EVEN": num_columns % tile.columns == 0,
        "ROWS": tile.rows,
        "FEW": few,
        "STARTS_NEXT": _STARTS_NEXT,
        "OUTPUTS": tile.outputs,
        "COLUMNS": tile.columns,
        "WORDS": BLOCK_WORDS,
        "num_stages": tile.num_stages,
        "num_warps": tile.num_warps,
    }
    return tile, options


def _weight(weight: Tensor, tile: Tile, *, has_descriptors: object) -> object:
    flat = weight.flatten(0, 1)
    return described(flat, tile.outputs, tile.columns) if has_descriptors else flat
