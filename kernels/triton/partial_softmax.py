"""Softmaxes over parts of a row: how they are merged, and passed between programs.

One is a state of three: the maximum [ROWS] and the sum [ROWS] of its weights, and the sum of values
under these weights [ROWS, COLUMNS], all float32 and before division. Weights are powers of two.
"""

import triton
import triton.language as tl

# stands for minus infinity: differences of it are 0, not NaN
LOWEST = tl.constexpr(-1e30)
# maximum and sum lie behind the values of a stored row, which stays aligned to 16 bytes
STATISTICS = tl.constexpr(4)


@triton.jit
def no_tokens(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The softmax over nothing."""
    highest = tl.full([ROWS], LOWEST, tl.float32)
    return highest, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def merge(state, other):
    """Merge the softmax over some tokens into that over those before.

    Multiply-adds are explicit, because all who merge must round alike.
    """
    highest, total, attended = state
    other_highest, other_total, other_attended = other
    new_highest = tl.maximum(highest, other_highest)
    shrink, other_shrink = tl.exp2(highest - new_highest), tl.exp2(other_highest - new_highest)
    total = tl.fma(total, shrink, other_total * other_shrink)
    shrink = tl.broadcast_to(shrink[:, None], attended.shape)
    attended = tl.fma(attended, shrink, other_attended * other_shrink[:, None])
    return new_highest, total, attended


@triton.jit
def store_state(slots, slot, state, GROUP: tl.constexpr, DIM: tl.constexpr):
    """Store the first GROUP rows and DIM columns of a state into a slot."""
    highest, total, attended = state
    rows, dims = tl.arange(0, attended.shape[0]), tl.arange(0, attended.shape[1])
    places = slots + (slot * GROUP + rows) * (DIM + STATISTICS)
    is_element = (rows < GROUP)[:, None] & (dims < DIM)[None, :]
    tl.store(places[:, None] + dims[None, :], attended, is_element)
    tl.store(places + DIM, highest, rows < GROUP)
    tl.store(places + DIM + 1, total, rows < GROUP)


@triton.jit
def _load_state(
    slots,
    slot,
    is_there,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Load past the first-level cache, because others stored it."""
    rows, dims = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_row = is_there & (rows < GROUP)
    places = slots + (slot * GROUP + rows) * (DIM + STATISTICS)
    is_element = is_row[:, None] & (dims < DIM)[None, :]
    values = places[:, None] + dims[None, :]
    attended = tl.load(values, is_element, other=0.0, cache_modifier=".cg")
    highest = tl.load(places + DIM, is_row, other=LOWEST, cache_modifier=".cg")
    total = tl.load(places + DIM + 1, is_row, other=0.0, cache_modifier=".cg")
    return highest, total, attended


@triton.jit
def merge_slots(
    slots,
    num_slots,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Merge what is stored in slots, in their order."""
    UNROLLED: tl.constexpr = 8
    state = no_tokens(ROWS, COLUMNS)
    for first in range(0, num_slots, UNROLLED):
        # so that loads do not wait for each other
        for step in tl.static_range(UNROLLED):
            is_there = first + step < num_slots
            other = _load_state(slots, first + step, is_there, GROUP, DIM, ROWS, COLUMNS)
            state = merge(state, other)
    return state


@triton.jit
def store_result(out, state, GROUP: tl.constexpr, DIM: tl.constexpr):
    """Divide and store the first GROUP rows and DIM columns; zeros of no tokens."""
    _, total, attended = state
    rows, dims = tl.arange(0, attended.shape[0]), tl.arange(0, attended.shape[1])
    result = attended / tl.where(total > 0, total, 1.0)[:, None]
    is_element = (rows < GROUP)[:, None] & (dims < DIM)[None, :]
    tl.store(out + rows[:, None] * DIM + dims[None, :], result.to(out.dtype.element_ty), is_element)
