"""The warps that attend: products on the tensor cores, and the softmax beside them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from kernels.triton.attention.hopper.ring import HALF, pieces, wait_for_slot
from kernels.triton.attention.hopper.schedule import ROWS, load_item, num_turns
from kernels.triton.attention.partial_softmax import LOWEST


@gluon.jit
def _multiply_keys(queries, keys):
    """Ask for the scores [ROWS, TILE] of [ROWS, DIM] and [TILE, DIM]."""
    TILE: gl.constexpr = keys.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    zeros = gl.zeros([ROWS, TILE], gl.float32, LAYOUT)
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
    HALVES: gl.constexpr = ring.values.shape[2] // HALF
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    piece = (end - first) // PIECE_LEN
    num_values = (end - first) % PIECE_LEN
    if (piece < PIECES) & (num_values > 0):
        is_value = gl.arange(0, PIECE_LEN, layout=gl.SliceLayout(1, LAYOUT)) < num_values
        for half in gl.static_range(HALVES):
            index = (slot % STAGES * HALVES + half) * PIECES + piece
            memory = pieces(ring.values, PIECE_LEN).index(index)
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
        wait_for_slot(ring, slots_before + tile + 1)
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
    wait_for_slot(ring, slots_before)
    scores = warpgroup_mma_wait(0, [_multiply_keys(queries, ring.keys.index(slot))])
    mbarrier.arrive(ring.free.index(slot))
    state = (
        gl.full_like(positions, LOWEST, dtype=gl.float32),
        gl.zeros_like(positions, dtype=gl.float32),
    )
    weights, _, state = _softmax(scores, state, positions, 0, scale, True)
    weights = gl.convert_layout(weights.to(queries.dtype), WEIGHTS)
    wait_for_slot(ring, slots_before + 1)
    _clear_values(ring, slots_before + 1, 0, end, PIECE_LEN)
    attended = gl.zeros([ROWS, DIM], gl.float32, ATTENDED)
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
def attend(
    group,
    out,
    schedule,
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
    first = group * (ROWS // PACKED)
    num_done, num_slots = 0, 0
    for turn in range(num_turns(schedule)):
        item = load_item(schedule, turn, HEADS, PACKED, GROUPS)
        if item.num_tokens > 0:
            end = item.position + item.num_tokens
            rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
            mbarrier.wait(ring.queries_ready.index(0), num_done & 1)
            attended = _attend_item(
                ring.queries.index(group),
                ring,
                item.position + first + rows // PACKED,
                gl.maximum((item.position + 1) // TILE, 1),
                end,
                scale,
                num_slots,
                PIECE_LEN,
            )
            rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ATTENDED))
            dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, ATTENDED))
            indices = first + rows // PACKED
            tokens = (item.first_token + indices).to(gl.int64)
            heads = tokens * HEADS + item.first_head + rows % PACKED
            places = out + (heads * DIM)[:, None] + dims[None, :]
            is_row = (indices < item.num_tokens)[:, None]
            gl.store(places, attended.to(out.dtype.element_ty), is_row)
            num_done += 1
            num_slots += gl.cdiv(end, TILE) + 1
