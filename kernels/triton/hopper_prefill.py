"""Prefill attention for Hopper: warps that only fetch, and products that run beside the softmax.

A program has a warp that fetches, one or two groups of four warps that attend to 64 rows each, and
a ring of tiles in shared memory between them. The fetching warp looks blocks up in the block table
and asks the tensor memory accelerator for one head of each; it runs ahead, into the program's next
work too. A group asks for the product with the keys of a tile and for the product with the values
of the tile before, and computes the softmax of the one while the other runs (FlashAttention-3,
arXiv:2407.08608, section 3.2). Tiles begin at position 0 and have one size, as in
`prefill_attention`, so the bits of a token depend neither on chunks nor on the batch.

Gluon is Triton's language for kernels that choose layouts and warps themselves
(https://triton-lang.org/main/getting-started/tutorials/gluon). Its kernels run on a GPU alone.
"""

import functools

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

from kernels.triton.attention_work import AttentionWork
from kernels.triton.launch import num_sms
from kernels.triton.partial_softmax import LOWEST

# names of Triton 3.9, for 3.6 to 3.8 too
aggregate = getattr(triton, "aggregate", None) or triton.language.core._aggregate
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
if not hasattr(gl.shared_memory_descriptor, "reinterpret"):
    gl.shared_memory_descriptor.reinterpret = gl.shared_memory_descriptor._reinterpret

# rows of the products of a group of warps
_ROWS = gl.constexpr(64)
# elements of the rows that one copy fills: what shared memory is swizzled by
_HALF = gl.constexpr(64)
# keys of a tile; part of the result's bits
_KEYS = 128
_NUM_STAGES = 3
# of a thread; the first group takes 256, and each three times 168 are what the program began with
_SECOND_GROUP_REGISTERS = gl.constexpr(216)
_FETCH_REGISTERS = gl.constexpr(32)
# a row of the pool before its first, where copies read zeros
_NOWHERE = gl.constexpr(-(2**30))


def is_for_hopper(q: Tensor, kv_layer: Tensor) -> bool:
    """Whether `hopper_prefill` can: on Hopper, 16-bit heads of 64 or 128, blocks of 16 or more."""
    block_size, head_dim = kv_layer.shape[3:]
    return (
        _is_hopper(q.device)
        and q.element_size() == 2
        and head_dim in (64, 128)
        and block_size >= 16
        and block_size & (block_size - 1) == 0
    )


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def hopper_prefill(
    q: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    work: AttentionWork,
    exponent_scale: float,
    out: Tensor,
    num_groups: int | None = None,
) -> None:
    """Compute `prefill_attention` where `is_for_hopper` says so.

    Args:
        q, kv_layer, block_tables, work, out: as there.
        exponent_scale: factor of the scores as exponents of 2.
        num_groups: of warps that attend, in each program, 1 or 2; None chooses by what there is to
            do. Bits do not depend on it.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = kv_layer.shape[2:4]
    group = num_heads // num_kv_heads
    # heads that share a key head are rows of one product, where they fill it without rest
    packed = group if group & (group - 1) == 0 and group <= _ROWS.value else 1
    num_groups = num_groups or _num_groups(q, packed, work)
    num_parts = triton.cdiv(work.max_tile_tokens * packed, num_groups * _ROWS.value)
    num_items = len(work.tiles) * (num_heads // packed) * num_parts
    _hopper_prefill_kernel[(min(num_items, num_sms(q.device)),)](
        out,
        _boxes_of_queries(q, packed),
        _boxes_of_pool(kv_layer),
        block_tables,
        work.tiles,
        num_items,
        num_parts,
        block_tables.stride(0),
        kv_layer.stride(0) // head_dim,
        exponent_scale,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        PACKED=packed,
        BLOCK_SIZE=block_size,
        DIM=head_dim,
        TILE=_KEYS,
        STAGES=_NUM_STAGES,
        GROUPS=num_groups,
        num_warps=4,
        launch_pdl=True,
    )


def _num_groups(q: Tensor, packed: int, work: AttentionWork) -> int:
    """Two groups share what is fetched; one leaves no multiprocessor idle when there is little."""
    num_products = q.shape[0] * q.shape[1] // _ROWS.value
    is_one_enough = work.max_tile_tokens * packed <= _ROWS.value
    return 1 if is_one_enough or num_products <= num_sms(q.device) else 2


def _boxes_of_queries(q: Tensor, packed: int) -> TensorDescriptor:
    """Queries by boxes that are the rows of a group's product."""
    box = [_ROWS.value // packed, packed, _HALF.value]
    return TensorDescriptor(q, list(q.shape), list(q.stride()), box, _swizzled(rank=3))


def _boxes_of_pool(kv_layer: Tensor) -> TensorDescriptor:
    """A layer of the pool as rows of keys or values, by boxes of tokens that lie together."""
    num_blocks, _, num_kv_heads, block_size, head_dim = kv_layer.shape
    num_rows = (num_blocks - 1) * kv_layer.stride(0) // head_dim + 2 * num_kv_heads * block_size
    # what the accelerator takes for a place; 2^31 rows of 128 bytes would be 256 GiB
    assert num_rows < 2**31
    box = [min(block_size, _KEYS), _HALF.value]
    return TensorDescriptor(kv_layer, [num_rows, head_dim], [head_dim, 1], box, _swizzled(rank=2))


@functools.cache
def _swizzled(rank: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank)


@aggregate
class _Source:
    """What the fetching warp reads: queries and a layer of the pool by boxes, and block tables."""

    q: tma.tensor_descriptor
    pool: tma.tensor_descriptor
    block_tables: gl.tensor
    table_stride: gl.tensor
    rows_per_block: gl.tensor

    @gluon.constexpr_function
    def __init__(self, q, pool, block_tables, table_stride, rows_per_block):
        self.q = q
        self.pool = pool
        self.block_tables = block_tables
        self.table_stride = table_stride
        self.rows_per_block = rows_per_block


@aggregate
class _Ring:
    """Shared memory between the warps of a program.

    A program's work is a stream of tiles. In the slot after that of a tile's keys are its values,
    beside the keys of the next tile; the values of the last tile have the slot for themselves.

    Attributes:
        queries: [GROUPS, ROWS, DIM].
        keys, values: [STAGES, TILE, DIM], slot n of the stream at n % STAGES.
        ready, free: [STAGES, 1] barriers of the slots: keys and values are there; all groups are
            done with them.
        queries_ready, queries_free: [1, 1] barriers of the queries.
    """

    queries: gl.shared_memory_descriptor
    keys: gl.shared_memory_descriptor
    values: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    queries_ready: gl.shared_memory_descriptor
    queries_free: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, queries, keys, values, ready, free, queries_ready, queries_free):
        self.queries = queries
        self.keys = keys
        self.values = values
        self.ready = ready
        self.free = free
        self.queries_ready = queries_ready
        self.queries_free = queries_free


@gluon.jit
def _make_ring(
    DTYPE: gl.constexpr,
    DIM: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=16, rank=2
    )
    ring = _Ring(
        gl.allocate_shared_memory(DTYPE, [GROUPS, _ROWS, DIM], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, TILE, DIM], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, TILE, DIM], SWIZZLED),
        _make_barriers(STAGES, 2),
        _make_barriers(STAGES, GROUPS),
        _make_barriers(1, 1),
        _make_barriers(1, GROUPS),
    )
    fence_async_shared()
    return ring


@gluon.jit
def _make_barriers(NUM: gl.constexpr, ARRIVALS: gl.constexpr):
    barriers = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(barriers.index(index), count=ARRIVALS)
    return barriers


@gluon.jit
def _wait_for_slot(ring, slot):
    STAGES: gl.constexpr = ring.ready.shape[0]
    mbarrier.wait(ring.ready.index(slot % STAGES), slot // STAGES & 1)


@gluon.jit
def _pieces(tiles, PIECE_LEN: gl.constexpr):
    """[STAGES, TILE, DIM] as what copies fill: [STAGES * HALVES * PIECES, PIECE_LEN, 64].

    In swizzled memory the first halves of all rows of a tile are before the second ones.
    """
    ELEMENTS: gl.constexpr = tiles.shape[0] * tiles.shape[1] * tiles.shape[2]
    NUM: gl.constexpr = ELEMENTS // (PIECE_LEN * _HALF)
    return tiles.reinterpret(tiles.dtype, [NUM, PIECE_LEN, _HALF], tiles.layout)


@gluon.jit
def _load_item(
    tiles,
    turn,
    num_items,
    num_parts,
    HEADS: gl.constexpr,
    PACKED: gl.constexpr,
    GROUPS: gl.constexpr,
):
    """What a program does in a turn: part of a tile of queries, for heads that are packed.

    Costs fall from item to item; in odd turns programs take them backwards, so all have as much.

    Returns:
        Row of the batch, first head, first token, its position, and the number of tokens, which is
        not positive where the tile has fewer or the turn has no item.
    """
    PART_LEN: gl.constexpr = GROUPS * _ROWS // PACKED
    program, num_programs = gl.program_id(0), gl.num_programs(0)
    place = gl.where(turn % 2 == 0, program, num_programs - 1 - program)
    item = turn * num_programs + place
    # the last part first, which sees the most
    first = (num_parts - 1 - item % num_parts) * PART_LEN
    first_head = item // num_parts % (HEADS // PACKED) * PACKED
    record = tiles + item // num_parts // (HEADS // PACKED) * 4
    row = gl.load(record, item < num_items, other=0)
    first_token = gl.load(record + 1, item < num_items, other=0) + first
    num_tokens = gl.load(record + 2, item < num_items, other=0) - first
    position = gl.load(record + 3, item < num_items, other=0) + first
    return row, first_head, first_token, position, gl.minimum(num_tokens, PART_LEN)


@gluon.jit
def _find_rows(
    source, table, first, end, first_row, BLOCK_SIZE: gl.constexpr, PIECES: gl.constexpr
):
    """Rows of the pool, a tuple, at which the pieces of the tile at token `first` begin."""
    PIECE_LEN: gl.constexpr = source.pool.block_type.shape[0]
    rows = gl.tuple([])
    for piece in gl.static_range(PIECES):
        token = first + piece * PIECE_LEN
        block = gl.load(table + token // BLOCK_SIZE, token < end, other=0)
        row = block * source.rows_per_block + first_row + token % BLOCK_SIZE
        rows += gl.tuple([gl.where(token < end, row, _NOWHERE)])
    return rows


@gluon.jit
def _copy_tile(pool, rows, offset, tiles, slot, ready):
    PIECE_LEN: gl.constexpr = pool.block_type.shape[0]
    PIECES: gl.constexpr = tiles.shape[1] // PIECE_LEN
    HALVES: gl.constexpr = tiles.shape[2] // _HALF
    pieces = _pieces(tiles, PIECE_LEN)
    for piece in gl.static_range(PIECES):
        for half in gl.static_range(HALVES):
            target = pieces.index((slot * HALVES + half) * PIECES + piece)
            source = [rows[piece] + offset, half * _HALF]
            async_load(pool, source, ready, target)


@gluon.jit
def _copy_queries(q, first_token, first_head, ring, items_before):
    GROUPS: gl.constexpr = ring.queries.shape[0]
    DIM: gl.constexpr = ring.queries.shape[2]
    TOKENS: gl.constexpr = q.block_type.shape[0]
    PACKED: gl.constexpr = q.block_type.shape[1]
    HALVES: gl.constexpr = DIM // _HALF
    boxes = ring.queries.reinterpret(q.dtype, [GROUPS * HALVES, TOKENS, PACKED, _HALF], q.layout)
    ready = ring.queries_ready.index(0)
    mbarrier.wait(ring.queries_free.index(0), items_before & 1 ^ 1)
    mbarrier.expect(ready, GROUPS * _ROWS * DIM * 2)
    for group in gl.static_range(GROUPS):
        for half in gl.static_range(HALVES):
            target = boxes.index(group * HALVES + half)
            source = [first_token + group * TOKENS, first_head, half * _HALF]
            async_load(q, source, ready, target)


@gluon.jit
def _fetch_item(
    source,
    row,
    first_head,
    first_token,
    end,
    ring,
    items_before,
    slots_before,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
):
    STAGES: gl.constexpr = ring.keys.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    PIECES: gl.constexpr = TILE // source.pool.block_type.shape[0]
    TILE_BYTES: gl.constexpr = TILE * ring.keys.shape[2] * 2
    table = source.block_tables + row.to(gl.int64) * source.table_stride
    first_row = first_head // (HEADS // KV_HEADS) * BLOCK_SIZE
    num_tiles = gl.cdiv(end, TILE)
    # none; not the same as the names below, which the compiler would take for one
    rows_before = _find_rows(source, table, 0, 0, first_row, BLOCK_SIZE, PIECES)
    rows = _find_rows(source, table, 0, end, first_row, BLOCK_SIZE, PIECES)
    for tile in range(num_tiles + 1):
        slot = (slots_before + tile) % STAGES
        ready = ring.ready.index(slot)
        mbarrier.wait(ring.free.index(slot), (slots_before + tile) // STAGES & 1 ^ 1)
        if tile < num_tiles:
            mbarrier.expect(ready, TILE_BYTES)
            _copy_tile(source.pool, rows, 0, ring.keys, slot, ready)
        else:
            mbarrier.arrive(ready)
        if tile > 0:
            mbarrier.expect(ready, TILE_BYTES)
            _copy_tile(source.pool, rows_before, KV_HEADS * BLOCK_SIZE, ring.values, slot, ready)
        else:
            mbarrier.arrive(ready)
            _copy_queries(source.q, first_token, first_head, ring, items_before)
        rows_before = rows
        first = (tile + 1) * TILE
        rows = _find_rows(source, table, first, end, first_row, BLOCK_SIZE, PIECES)


@gluon.jit
def _fetch(
    source,
    tiles,
    num_items,
    num_parts,
    ring,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
):
    """Fill the ring; for one warp."""
    GROUPS: gl.constexpr = ring.queries.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    PACKED: gl.constexpr = source.q.block_type.shape[1]
    gdc_wait()
    num_done, num_slots = 0, 0
    for turn in range(gl.cdiv(num_items, gl.num_programs(0))):
        row, first_head, first_token, position, num_tokens = _load_item(
            tiles, turn, num_items, num_parts, HEADS, PACKED, GROUPS
        )
        if num_tokens > 0:
            end = position + num_tokens
            _fetch_item(
                source,
                row,
                first_head,
                first_token,
                end,
                ring,
                num_done,
                num_slots,
                HEADS,
                KV_HEADS,
                BLOCK_SIZE,
            )
            num_done += 1
            num_slots += gl.cdiv(end, TILE) + 1


@gluon.jit
def _multiply_keys(queries, keys):
    """Ask for the scores [ROWS, TILE] of [ROWS, DIM] and [TILE, DIM]."""
    TILE: gl.constexpr = keys.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    zeros = gl.zeros([_ROWS, TILE], gl.float32, LAYOUT)
    return warpgroup_mma(queries, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _softmax(scores, state, positions, first, scale, MASKED: gl.constexpr):
    """Weigh the values of the tile at token `first`.

    Args:
        scores: [ROWS, TILE].
        state: highest exponent and sum of the weights so far, [ROWS] each.
        positions: [ROWS] of the rows; they see all of the tile unless MASKED.

    Returns:
        Weights [ROWS, TILE], the factor [ROWS] of what was attended before, and the new state.
    """
    highest, total = state
    if MASKED:
        TILE: gl.constexpr = scores.shape[1]
        tokens = first + gl.arange(0, TILE, layout=gl.SliceLayout(0, scores.type.layout))
        scores = gl.where(tokens[None, :] <= positions[:, None], scores, LOWEST)
    new_highest = gl.maximum(highest, gl.max(scores, 1) * scale)
    weights = gl.exp2(scores * scale - new_highest[:, None])
    shrink = gl.exp2(highest - new_highest)
    return weights, shrink, (new_highest, total * shrink + gl.sum(weights, 1))


@gluon.jit
def _clear_values(ring, slot, first, end, PIECE_LEN: gl.constexpr):
    """Zero what one block has behind `end` of the tile at token `first`.

    It may be anything, and a weight of 0 times NaN is NaN. All groups write the same. Blocks that
    are wholly behind were copied from nowhere, as zeros.
    """
    STAGES: gl.constexpr = ring.values.shape[0]
    PIECES: gl.constexpr = ring.values.shape[1] // PIECE_LEN
    HALVES: gl.constexpr = ring.values.shape[2] // _HALF
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    piece = (end - first) // PIECE_LEN
    num_values = (end - first) % PIECE_LEN
    if (piece < PIECES) & (num_values > 0):
        is_value = gl.arange(0, PIECE_LEN, layout=gl.SliceLayout(1, LAYOUT)) < num_values
        for half in gl.static_range(HALVES):
            index = (slot % STAGES * HALVES + half) * PIECES + piece
            memory = _pieces(ring.values, PIECE_LEN).index(index)
            values = memory.load(LAYOUT)
            memory.store(gl.where(is_value[:, None], values, gl.zeros_like(values)))
        fence_async_shared()


@gluon.jit
def _attend_tiles(
    attended,
    weights,
    state,
    queries,
    ring,
    slots_before,
    start,
    stop,
    positions,
    end,
    scale,
    MASKED: gl.constexpr,
    PIECE_LEN: gl.constexpr,
):
    """Attend to the values of tiles [start - 1, stop - 1) and weigh those of tile stop - 1.

    Args:
        attended: [ROWS, DIM] up to tile start - 2, in units of the highest weight up to start - 1.
        weights: [ROWS, TILE] of tile start - 1.
        state: of the softmax, tile start - 1 included.
    """
    STAGES: gl.constexpr = ring.keys.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    ROWS_OF_VALUES: gl.constexpr = gl.SliceLayout(1, attended.type.layout)
    for tile in range(start, stop):
        slot = (slots_before + tile) % STAGES
        scores = _multiply_keys(queries, ring.keys.index(slot))
        attended = warpgroup_mma(weights, ring.values.index(slot), attended, is_async=True)
        scores = warpgroup_mma_wait(1, [scores])
        later, shrink, state = _softmax(scores, state, positions, tile * TILE, scale, MASKED)
        later = gl.convert_layout(later.to(weights.dtype), weights.type.layout)
        # this wait is a loop, so the compiler does not move the softmax behind the next one
        _wait_for_slot(ring, slots_before + tile + 1)
        attended, weights = warpgroup_mma_wait(0, [attended, weights])
        mbarrier.arrive(ring.free.index(slot))
        attended *= gl.convert_layout(shrink, ROWS_OF_VALUES)[:, None]
        weights = later
        if MASKED:
            _clear_values(ring, slots_before + tile + 1, tile * TILE, end, PIECE_LEN)
    return attended, weights, state


@gluon.jit
def _attend_item(
    queries,
    ring,
    positions,
    num_whole,
    end,
    scale,
    slots_before,
    PIECE_LEN: gl.constexpr,
):
    """Attend to tokens [0, end); all rows see the first `num_whole` tiles, or none.

    Returns:
        Weighted sum of the values [ROWS, DIM].
    """
    STAGES: gl.constexpr = ring.keys.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    DIM: gl.constexpr = ring.keys.shape[2]
    ATTENDED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, ATTENDED, 2)
    num_tiles = gl.cdiv(end, TILE)
    slot = slots_before % STAGES
    _wait_for_slot(ring, slots_before)
    scores = warpgroup_mma_wait(0, [_multiply_keys(queries, ring.keys.index(slot))])
    mbarrier.arrive(ring.free.index(slot))
    state = (
        gl.full_like(positions, LOWEST, dtype=gl.float32),
        gl.zeros_like(positions, dtype=gl.float32),
    )
    weights, _, state = _softmax(scores, state, positions, 0, scale, True)
    weights = gl.convert_layout(weights.to(queries.dtype), WEIGHTS)
    _wait_for_slot(ring, slots_before + 1)
    _clear_values(ring, slots_before + 1, 0, end, PIECE_LEN)
    attended = gl.zeros([_ROWS, DIM], gl.float32, ATTENDED)
    for is_masked in gl.static_range(2):
        attended, weights, state = _attend_tiles(
            attended,
            weights,
            state,
            queries,
            ring,
            slots_before,
            num_whole if is_masked else 1,
            num_tiles if is_masked else num_whole,
            positions,
            end,
            scale,
            is_masked,
            PIECE_LEN,
        )
    mbarrier.arrive(ring.queries_free.index(0))
    slot = (slots_before + num_tiles) % STAGES
    attended = warpgroup_mma(weights, ring.values.index(slot), attended, is_async=True)
    attended, weights = warpgroup_mma_wait(0, [attended, weights])
    mbarrier.arrive(ring.free.index(slot))
    return attended / gl.convert_layout(state[1], gl.SliceLayout(1, ATTENDED))[:, None]


@gluon.jit
def _attend(
    group,
    out,
    tiles,
    num_items,
    num_parts,
    scale,
    ring,
    HEADS: gl.constexpr,
    PACKED: gl.constexpr,
    PIECE_LEN: gl.constexpr,
):
    """Do what falls to a group of warps."""
    GROUPS: gl.constexpr = ring.queries.shape[0]
    TILE: gl.constexpr = ring.keys.shape[1]
    DIM: gl.constexpr = ring.keys.shape[2]
    ATTENDED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    gdc_wait()
    first = group * (_ROWS // PACKED)
    num_done, num_slots = 0, 0
    for turn in range(gl.cdiv(num_items, gl.num_programs(0))):
        _, first_head, first_token, position, num_tokens = _load_item(
            tiles, turn, num_items, num_parts, HEADS, PACKED, GROUPS
        )
        if num_tokens > 0:
            end = position + num_tokens
            rows = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SCORES))
            mbarrier.wait(ring.queries_ready.index(0), num_done & 1)
            attended = _attend_item(
                ring.queries.index(group),
                ring,
                position + first + rows // PACKED,
                gl.maximum((position + 1) // TILE, 1),
                end,
                scale,
                num_slots,
                PIECE_LEN,
            )
            rows = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, ATTENDED))
            dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, ATTENDED))
            indices = first + rows // PACKED
            heads = (first_token + indices).to(gl.int64) * HEADS + first_head + rows % PACKED
            places = out + (heads * DIM)[:, None] + dims[None, :]
            is_row = (indices < num_tokens)[:, None]
            gl.store(places, attended.to(out.dtype.element_ty), is_row)
            num_done += 1
            num_slots += gl.cdiv(end, TILE) + 1


@gluon.jit(
    do_not_specialize=["num_items", "num_parts", "table_stride"],
    do_not_specialize_on_alignment=["block_tables"],
)
def _hopper_prefill_kernel(
    out,
    q,
    pool,
    block_tables,
    tiles,
    num_items,
    num_parts,
    table_stride,
    rows_per_block,
    scale,
    HEADS: gl.constexpr,
    KV_HEADS: gl.constexpr,
    PACKED: gl.constexpr,
    BLOCK_SIZE: gl.constexpr,
    DIM: gl.constexpr,
    TILE: gl.constexpr,
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
):
    PIECE_LEN: gl.constexpr = pool.block_type.shape[0]
    source = _Source(q, pool, block_tables, table_stride, rows_per_block)
    ring = _make_ring(q.dtype, DIM, TILE, STAGES, GROUPS)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (
                    _attend,
                    (0, out, tiles, num_items, num_parts, scale, ring, HEADS, PACKED, PIECE_LEN),
                ),
                (
                    _attend,
                    (1, out, tiles, num_items, num_parts, scale, ring, HEADS, PACKED, PIECE_LEN),
                ),
                (_fetch, (source, tiles, num_items, num_parts, ring, HEADS, KV_HEADS, BLOCK_SIZE)),
            ],
            [4, 1],
            [_SECOND_GROUP_REGISTERS, _FETCH_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (
                    _attend,
                    (0, out, tiles, num_items, num_parts, scale, ring, HEADS, PACKED, PIECE_LEN),
                ),
                (_fetch, (source, tiles, num_items, num_parts, ring, HEADS, KV_HEADS, BLOCK_SIZE)),
            ],
            [1],
            [_FETCH_REGISTERS],
        )
