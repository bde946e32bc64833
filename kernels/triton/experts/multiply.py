"""What the two products of experts have in common: blocks of pairs, multiplied by an expert's rows.

Weights are multiplied by inputs, not inputs by weights, so that the rows of the weight fill the 64
rows of Hopper's matrix instruction (wgmma) where an expert has few tokens. A sum over columns is
never split: a row has the same bits in every batch, whatever the tile.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.experts.sort import BLOCK_WORDS, SortedPairs
from kernels.triton.launch import overlap, shared_bytes
from kernels.triton.linear.tiles import Tile, described


@triton.jit
def block_of(blocks, first_expert, num_experts, IS_SORTED: tl.constexpr, WORDS: tl.constexpr):
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
def _load_columns(places, is_column, IS_EVEN: tl.constexpr):
    return tl.load(places) if IS_EVEN else tl.load(places, is_column, other=0.0)


@triton.jit
def multiply(
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
        else:
            weights = _load_columns(weight_places, is_column, IS_EVEN)
        if IS_DESCRIBED:
            inputs = x.load([first_row, column])
        else:
            inputs = _load_columns(x_places, is_column, IS_EVEN)
        sums = tl.dot(weights, inputs.T, sums, input_precision="ieee")
        if not HAS_DESCRIPTORS:
            weight_places += COLUMNS
        if not IS_DESCRIBED:
            x_places += COLUMNS
    return sums


def blocks_of(pairs: SortedPairs | Tensor) -> tuple[Tensor, Tensor, int]:
    """Order, blocks and their number; unsorted pairs are blocks themselves."""
    if isinstance(pairs, SortedPairs):
        return pairs.order, pairs.blocks, len(pairs.blocks)
    return pairs, pairs, pairs.numel()


def fitted(tile: Tile, few: int, weight: Tensor) -> tuple[Tile, dict[str, object]]:
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
        "OUTPUTS": tile.outputs,
        "COLUMNS": tile.columns,
        "WORDS": BLOCK_WORDS,
        "num_stages": tile.num_stages,
        "num_warps": tile.num_warps,
    }
    return tile, options


def weight_source(weight: Tensor, tile: Tile, *, has_descriptors: object) -> object:
    """What a kernel takes: all experts' rows one after the other, described or not."""
    flat = weight.flatten(0, 1)
    return described(flat, tile.outputs, tile.columns) if has_descriptors else flat
