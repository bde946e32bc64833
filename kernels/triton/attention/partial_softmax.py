"""Softmaxes over parts of a row: how they are merged, and passed between programs.

One is a state of three: the maximum [QUERIES] and the sum [QUERIES] of its weights, and the sum of
values under these weights [DIMS, QUERIES], all float32 and before division. Weights are powers of
two.
"""

import triton
import triton.language as tl

# makes scores exponents of 2
LOG2_E = tl.constexpr(1.4426950408889634)
# Stands for minus infinity: differences of it are 0, not NaN. It is a power of two, as a compiler
# fuses `score * scale - highest`: the product that is not rounded there must be the one that was
# rounded, or a row that has seen no token yet gets weights of two to the power of 1e21.
LOWEST = tl.constexpr(-(2.0**100))
# rows of GROUP numbers behind the values of a stored state: maximum, sum and two unused ones, so
# that the next state is aligned to 16 bytes
STATISTICS = tl.constexpr(4)


@triton.jit
def capped(exponents, CAP: tl.constexpr):
    """CAP * tanh(exponents / CAP), for scores that a model caps."""
    return CAP * (2 * tl.sigmoid(exponents * (2 / CAP)) - 1)


@triton.jit
def no_tokens(DIMS: tl.constexpr, QUERIES: tl.constexpr):
    """The softmax over nothing."""
    highest = tl.full([QUERIES], LOWEST, tl.float32)
    return highest, tl.zeros([QUERIES], tl.float32), tl.zeros([DIMS, QUERIES], tl.float32)


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
    shrink = tl.broadcast_to(shrink[None, :], attended.shape)
    attended = tl.fma(attended, shrink, other_attended * other_shrink[None, :])
    return new_highest, total, attended


@triton.jit
def _slot_places(slots, slot, DIMS: tl.constexpr, QUERIES: tl.constexpr, GROUP, DIM):
    """Where maximum, sum and values of the state in a slot lie."""
    place = slots + slot * (GROUP * (DIM + STATISTICS))
    dims, queries = tl.arange(0, DIMS)[:, None], tl.arange(0, QUERIES)
    highest = place + DIM * GROUP + queries
    return highest, highest + GROUP, place + dims * GROUP + queries[None, :]


@triton.jit
def store_state(slots, slot, state, GROUP: tl.constexpr, DIM: tl.constexpr):
    """Store the first DIM rows and GROUP columns of a state into a slot."""
    highest, total, attended = state
    DIMS: tl.constexpr = attended.shape[0]
    QUERIES: tl.constexpr = attended.shape[1]
    highests, totals, values = _slot_places(slots, slot, DIMS, QUERIES, GROUP, DIM)
    is_query, is_dim = tl.arange(0, QUERIES) < GROUP, tl.arange(0, DIMS)[:, None] < DIM
    tl.store(values, attended, is_dim & is_query[None, :])
    tl.store(highests, highest, is_query)
    tl.store(totals, total, is_query)


@triton.jit
def _load_state(
    slots,
    slot,
    is_there,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Load past the first-level cache, because others stored it."""
    highests, totals, values = _slot_places(slots, slot, DIMS, QUERIES, GROUP, DIM)
    is_query = is_there & (tl.arange(0, QUERIES) < GROUP)
    is_element = (tl.arange(0, DIMS)[:, None] < DIM) & is_query[None, :]
    attended = tl.load(values, is_element, other=0.0, cache_modifier=".cg")
    highest = tl.load(highests, is_query, other=LOWEST, cache_modifier=".cg")
    total = tl.load(totals, is_query, other=0.0, cache_modifier=".cg")
    return highest, total, attended


@triton.jit
def merge_slots(
    slots,
    num_slots,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIMS: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Merge what is stored in slots, in their order."""
    UNROLLED: tl.constexpr = 8
    state = no_tokens(DIMS, QUERIES)
    for first in range(0, num_slots, UNROLLED):
        # so that loads do not wait for each other
        for step in tl.static_range(UNROLLED):
            is_there = first + step < num_slots
            other = _load_state(slots, first + step, is_there, GROUP, DIM, DIMS, QUERIES)
            state = merge(state, other)
    return state


@triton.jit
def with_sinks(state, sinks):
    """Let sinks [QUERIES], as exponents, take their shares of the weights."""
    highest, total, attended = state
    new_highest = tl.maximum(highest, sinks)
    shrink = tl.exp2(highest - new_highest)
    total = total * shrink + tl.exp2(sinks - new_highest)
    return new_highest, total, attended * shrink[None, :]


@triton.jit
def store_result(out, state, GROUP: tl.constexpr, DIM: tl.constexpr):
    """Divide and store the first DIM rows and GROUP columns as [GROUP, DIM]; zeros of no tokens."""
    _, total, attended = state
    dims, queries = tl.arange(0, attended.shape[0])[:, None], tl.arange(0, attended.shape[1])
    result = attended / tl.where(total > 0, total, 1.0)[None, :]
    is_element = (dims < DIM) & (queries < GROUP)[None, :]
    place = out + queries[None, :] * DIM + dims
    tl.store(place, result.to(out.dtype.element_ty), is_element)
