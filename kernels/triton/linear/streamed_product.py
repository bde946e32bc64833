"""Products of few rows by a large matrix, whose price is reading the matrix once.

The kernel keeps many loads of the weights in flight and multiplies weights by inputs, not inputs by
weights, so that the rows of the weight fill the 64 rows of Hopper's matrix instruction (wgmma).
Where a matrix has too few rows to occupy the device, its columns are split, and the last program of
a tile adds the parts in order.

The sum over the columns is taken in the same order and in the same parts whatever the number of
rows and the shape of a tile, so one kernel gives a row the same bits in every batch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import num_sms, overlap, shared_bytes, wait_for_inputs
from kernels.triton.linear.tiles import Tile, described

# borders of the parts of a sum are multiples of this, whatever the tile
_PART_UNIT = 256
# rows of one launch: bounds the memory of partial sums, and the number of counters
_SLAB_ROWS = 2048


# By rows, the last for any number. Of each line the first is taken whose programs all run at once,
# or else the last. Up to 64 rows they are the fastest of 16 for the shapes of Llama-3-8B and
# OPT-13B on an H200, beyond on an H100.
_TILES = [
    # 4096 x 28672: 57.2 us with 4 stages, 61.8 with 3; 5120 x 20480: 53.4 and 50.0
    [Tile(16, 64, 256, 4, 4), Tile(16, 64, 128, 3, 4), Tile(16, 64, 128, 4, 4)],
    # 32 rows of 4096 x 4096: 11.2 us, in columns of 128 11.8
    [Tile(32, 64, 256, 4, 4), Tile(32, 64, 128, 3, 4), Tile(32, 64, 128, 4, 4)],
    # 64 rows of 5120 x 15360: 39.9 us, 41.0 with 64 outputs; of 5120 x 20480: 54.3 in columns of
    # 64, 58.9 of 128; of 5120 x 50272: 131.8 and 124.7
    [
        Tile(64, 64, 128, 6, 4),
        Tile(64, 128, 128, 4, 4),
        Tile(64, 128, 64, 4, 4),
        Tile(64, 128, 128, 4, 4),
    ],
    # 128 rows of 4096 x 6144: 23.6 us, 29.7 with twice the outputs; of 4096 x 28672: 99.0 and 89.9
    [Tile(128, 64, 128, 4, 4), Tile(128, 128, 64, 5, 4)],
    [Tile(128, 128, 64, 5, 4), Tile(256, 128, 64, 4, 8)],
]
# a sum is cut into parts of at most so many terms, and into more where few programs would work
_PART_COLUMNS = 7168
_FEW_PROGRAMS = 64


@triton.jit
def _multiply_part(
    x,
    weight,
    first_row,
    first_output,
    num_rows,
    num_outputs,
    num_columns,
    start,
    end,
    HAS_DESCRIPTORS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums over the columns [start, end): [OUTPUTS, ROWS] float32."""
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    if HAS_DESCRIPTORS:
        for column in range(start, end, COLUMNS):
            weights = weight.load([first_output, column])
            inputs = x.load([first_row, column])
            sums = tl.dot(weights, inputs.T, sums)
    else:
        columns = tl.arange(0, COLUMNS)
        # what lies beyond the end repeats the last one; its results are not stored
        rows = tl.minimum(first_row + tl.arange(0, ROWS), num_rows - 1).to(tl.int64)
        outputs = tl.minimum(first_output + tl.arange(0, OUTPUTS), num_outputs - 1).to(tl.int64)
        x_places = x + rows[:, None] * num_columns + (start + columns)[None, :]
        weight_places = weight + outputs[:, None] * num_columns + (start + columns)[None, :]
        for column in range(start, end, COLUMNS):
            if IS_EVEN:
                weights = tl.load(weight_places, eviction_policy="evict_first")
                inputs = tl.load(x_places)
            else:
                is_column = (column + columns)[None, :] < end
                weights = tl.load(weight_places, is_column, other=0.0)
                inputs = tl.load(x_places, is_column, other=0.0)
            sums = tl.dot(weights, inputs.T, sums, input_precision="ieee")
            weight_places += COLUMNS
            x_places += COLUMNS
    return sums


@triton.jit
def _store_result(out, sums, bias, places, outputs, is_inside, num_outputs, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        shift = tl.load(bias + outputs, outputs < num_outputs, other=0.0)
        sums += shift.to(tl.float32)[None, :]
    tl.store(out + places, sums.to(out.dtype.element_ty), is_inside)


@triton.jit(do_not_specialize=["num_rows", "num_parts", "part_units"])
def _linear_kernel(
    out,
    x,
    weight,
    bias,
    partial_sums,
    arrivals,
    num_rows,
    num_outputs,
    num_columns,
    num_parts,
    part_units,
    HAS_BIAS: tl.constexpr,
    HAS_PARTS: tl.constexpr,
    HAS_DESCRIPTORS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNIT: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    # programs that share a stretch of the weight are neighbours, so that it is read once
    tile, part = tl.program_id(1) // num_parts, tl.program_id(1) % num_parts
    first_row, first_output = tl.program_id(0) * ROWS, tile * OUTPUTS
    # the constant lets the compiler know that loads begin at multiples of 16 bytes
    start = part * part_units * UNIT
    end = tl.minimum(start + part_units * UNIT, num_columns)
    wait_for_inputs(OVERLAPPED)
    sums = _multiply_part(
        x,
        weight,
        first_row,
        first_output,
        num_rows,
        num_outputs,
        num_columns,
        start,
        end,
        HAS_DESCRIPTORS,
        IS_EVEN,
        ROWS,
        OUTPUTS,
        COLUMNS,
    )
    sums = tl.trans(sums)
    rows = first_row + tl.arange(0, ROWS)
    outputs = first_output + tl.arange(0, OUTPUTS)
    is_inside = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    places = rows.to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    if HAS_PARTS:
        part_size = (tl.zeros([], tl.int64) + num_rows) * num_outputs
        tl.store(partial_sums + part * part_size + places, sums, is_inside)
        tl.debug_barrier()
        arrival = arrivals + tl.program_id(0) * (tl.num_programs(1) // num_parts) + tile
        if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == num_parts - 1:
            tl.store(arrival, 0)
            sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
            for index in range(num_parts):
                # written by other multiprocessors, so not to be read through this one's cache
                stored = partial_sums + index * part_size + places
                sums += tl.load(stored, is_inside, other=0.0, cache_modifier=".cg")
            _store_result(out, sums, bias, places, outputs, is_inside, num_outputs, HAS_BIAS)
    else:
        _store_result(out, sums, bias, places, outputs, is_inside, num_outputs, HAS_BIAS)


class StreamedProduct:
    """x @ weight.T + bias by `_linear_kernel`, the same bits for a row in every batch."""

    def __init__(self, weight: Tensor, bias: Tensor | None, num_parts: int | None = None) -> None:
        """Prepare.

        Args:
            weight: [out_features, in_features], contiguous; not copied.
            bias: [out_features] or None.
            num_parts: parts of each sum; None takes what suits the shape.
        """
        assert weight.is_contiguous()
        num_outputs, num_columns = weight.shape
        wanted = _num_parts(num_outputs, num_columns) if num_parts is None else num_parts
        units = triton.cdiv(num_columns, _PART_UNIT)
        self._part_units = triton.cdiv(units, wanted)
        self._num_parts = triton.cdiv(units, self._part_units)
        self._weight = weight
        self._bias = bias
        # zero between launches; a tile of a launch has one
        num_tiles = triton.cdiv(num_outputs, 64) * triton.cdiv(_SLAB_ROWS, 64)
        self._arrivals = torch.zeros(
            num_tiles if self._num_parts > 1 else 0, dtype=torch.int32, device=weight.device
        )

    def __call__(self, x: Tensor, tile: Tile | None = None) -> Tensor:
        """Multiply.

        Args:
            x: [T, in_features], contiguous, the dtype of the weight.
            tile: None takes the fastest known for T rows.

        Returns:
            [T, out_features], the same dtype.
        """
        num_rows, num_columns = x.shape
        assert num_columns == self._weight.shape[1]
        assert x.dtype == self._weight.dtype
        assert x.is_contiguous()
        out = torch.empty(num_rows, len(self._weight), dtype=x.dtype, device=x.device)
        for slab, slab_out in zip(x.split(_SLAB_ROWS), out.split(_SLAB_ROWS), strict=True):
            if len(slab):
                self._launch(slab, slab_out, tile or self._tile_for(len(slab)))
        return out

    def _tile_for(self, num_rows: int) -> Tile:
        """The fastest known; no part of the bits."""
        tiles = next((tiles for tiles in _TILES if num_rows <= tiles[0].rows), _TILES[-1])
        device, num_outputs = self._weight.device, len(self._weight)
        sms, shared = num_sms(device), shared_bytes(device)
        for tile in tiles:
            num_tiles = triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_outputs, tile.outputs)
            programs_per_sm = max(shared // (tile.num_stages * tile.stage_bytes()), 1)
            if num_tiles * self._num_parts <= sms * programs_per_sm:
                break
        return tile

    def _launch(self, x: Tensor, out: Tensor, tile: Tile) -> None:
        num_rows, num_outputs = out.shape
        num_columns = x.shape[1]
        options = overlap(x.device)
        # the copy engine of Hopper wants rows that begin at multiples of 16 bytes
        has_descriptors = options["OVERLAPPED"] and num_columns % 8 == 0
        tile = tile.fitted(shared_bytes(x.device), has_descriptors=has_descriptors)
        num_sums = self._num_parts * num_rows * num_outputs if self._num_parts > 1 else 0
        grid = (
            triton.cdiv(num_rows, tile.rows),
            triton.cdiv(num_outputs, tile.outputs) * self._num_parts,
        )
        _linear_kernel[grid](
            out,
            described(x, tile.rows, tile.columns) if has_descriptors else x,
            described(self._weight, tile.outputs, tile.columns)
            if has_descriptors
            else self._weight,
            self._bias,
            x.new_empty(num_sums, dtype=torch.float32),
            self._arrivals,
            num_rows,
            num_outputs,
            num_columns,
            self._num_parts,
            self._part_units,
            HAS_BIAS=self._bias is not None,
            HAS_PARTS=self._num_parts > 1,
            HAS_DESCRIPTORS=has_descriptors,
            IS_EVEN=num_columns % tile.columns == 0,
            ROWS=tile.rows,
            OUTPUTS=tile.outputs,
            COLUMNS=tile.columns,
            UNIT=_PART_UNIT,
            num_stages=tile.num_stages,
            num_warps=tile.num_warps,
            **options,
        )


def _num_parts(num_outputs: int, num_columns: int) -> int:
    """Parts of each sum: as few as the length of the sum and the size of the matrix allow.

    It is part of the bits, so it depends only on the shape. On an H200 the fastest up to 64 rows
    were 1 part for 4096 x 4096 (11.3 us instead of 12.7 with 2, at 32 rows), 4096 x 6144 and
    5120 x 5120, 2 for 14336 x 4096 (32.7 instead of 34.2 with 4) and 3 for 20480 x 5120.
    """
    num_tiles: int = triton.cdiv(num_outputs, _TILES[0][0].outputs)
    fewest: int = triton.cdiv(num_columns, _PART_COLUMNS)
    return max(fewest, min(_FEW_PROGRAMS // num_tiles, num_columns // 1024))
