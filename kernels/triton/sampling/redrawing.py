"""Draws one token among those that the filters of a row keep: draw, check, draw again.

The draw is the argmax of scores over the tokens that the filters keep. Take the argmax over all
tokens first. If it is kept it is the answer, since it wins among more. If not, no token ranked
after it is kept either, so the next argmax is taken among those ranked before. A draw is kept with
a probability near top_p, so few rounds are needed however many tokens are kept. For the next argmax
only those chunks are read again whose winner is ruled out and was ahead of all others. Tokens are
ranked by logit, equal ones by token id.
"""

import triton
import triton.language as tl

from kernels.triton.sampling.noise import best_draw, first_token
from kernels.triton.sampling.selection import kth_of_block, kth_of_row, load_block

# of the largest probability; 2048 of them stay below 2**63
_MASS_UNIT = tl.constexpr(2.0**40)


@triton.jit
def draw_row(
    row,
    vocab_size,
    scores,
    winners,
    largest,
    total,
    temperature,
    top_k,
    top_p,
    min_p,
    first_key,
    second_key,
    KEY_BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Draw from a whole row, given its chunks' winners and their scores [CHUNKS]."""
    floor = -float("inf")
    if (top_k > 0) & (top_k < vocab_size):
        floor = kth_of_row(row, vocab_size, top_k, KEY_BYTES, BLOCK)
        count, mass = _rank(row, vocab_size, floor, -1, largest, temperature, BLOCK)
        total = mass + (top_k - count) * tl.exp((floor - largest) / temperature)
    floor = _raise_floor(floor, largest, temperature, min_p)
    # all tokens come before this one
    value, token = -float("inf"), vocab_size
    is_kept = token < 0
    while not is_kept:
        token, value, scores, winners = _next_draw(
            row,
            vocab_size,
            scores,
            winners,
            floor,
            value,
            token,
            temperature,
            first_key,
            second_key,
            CHUNK,
        )
        count, mass = _rank(row, vocab_size, value, token, largest, temperature, BLOCK)
        is_kept = _is_kept(count, mass, value, largest, total, temperature, top_k, top_p, min_p)
    return token


@triton.jit
def draw_collected(
    values, tokens, largest, temperature, top_k, top_p, min_p, first_key, second_key
):
    """Draw from tokens [CAPACITY] that hold the top_k largest logits of a row.

    Args:
        values, tokens: in any order; -inf and a number beyond the vocabulary in unused places.
    """
    # whole numbers, because their sum does not depend on the order
    masses = (tl.exp((values - largest) / temperature) * _MASS_UNIT).to(tl.int64)
    floor = kth_of_block(values, top_k)
    above = values > floor
    num_equal = top_k - tl.sum(above.to(tl.int32), axis=0)
    total = tl.sum(tl.where(above, masses, 0), axis=0).to(tl.float32)
    total += num_equal * tl.exp((floor - largest) / temperature) * _MASS_UNIT
    floor = _raise_floor(floor, largest, temperature, min_p)
    value, token = -float("inf"), tl.max(tokens, axis=0) + 1
    is_kept = token < 0
    while not is_kept:
        is_open = (values >= floor) & _is_before(values, tokens, value, token)
        open_values = tl.where(is_open, values, -float("inf"))
        _, token = best_draw(open_values, tokens, temperature, first_key, second_key)
        value = tl.max(tl.where(tokens == token, values, -float("inf")), axis=0)
        is_before = _is_before(values, tokens, value, token)
        count = tl.sum(is_before.to(tl.int32), axis=0)
        mass = tl.sum(tl.where(is_before, masses, 0), axis=0).to(tl.float32)
        is_kept = _is_kept(count, mass, value, largest, total, temperature, top_k, top_p, min_p)
    return token


@triton.jit
def _next_draw(
    row,
    vocab_size,
    scores,
    winners,
    floor,
    value,
    token,
    temperature,
    first_key,
    second_key,
    CHUNK: tl.constexpr,
):
    """The best token before (value, token) whose logit is at least `floor`; there must be one.

    Args:
        scores, winners: [CHUNKS] of each chunk, for the tokens that were open so far.

    Returns:
        The token, its logit, and the scores and winners of chunks that were read again.
    """
    chunks = tl.arange(0, scores.shape[0])
    drawn, logit = token, value
    is_open = token < 0
    while not is_open:
        best = tl.max(scores, axis=0)
        chunk = first_token(scores == best, chunks)
        drawn = tl.max(tl.where(chunks == chunk, winners, 0), axis=0)
        logit = tl.load(row + drawn).to(tl.float32)
        is_open = (logit >= floor) & _is_before(logit, drawn, value, token)
        if not is_open:
            values, tokens = load_block(row, chunk * CHUNK, vocab_size, CHUNK)
            is_left = (values >= floor) & _is_before(values, tokens, value, token)
            values = tl.where(is_left, values, -float("inf"))
            scored, winner = best_draw(values, tokens, temperature, first_key, second_key)
            scores = tl.where(chunks == chunk, scored, scores)
            winners = tl.where(chunks == chunk, winner, winners)
            # cannot be, but a program that never ends would take the device with it
            is_open = best == -float("inf")
    return drawn, logit, scores, winners


@triton.jit
def _rank(row, vocab_size, value, token, largest, temperature, BLOCK: tl.constexpr):
    """How many tokens come before (value, token), and their sum of exp((logit - largest) / t)."""
    inverse = 1.0 / temperature
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        values, tokens = load_block(row, start, vocab_size, BLOCK)
        is_before = _is_before(values, tokens, value, token)
        counts += is_before.to(tl.int32)
        masses += tl.where(is_before, tl.exp((values - largest) * inverse), 0.0)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0)


@triton.jit
def _raise_floor(floor, largest, temperature, min_p):
    """The least logit that min-p may keep, or `floor` if that is larger."""
    if min_p > 0:
        # a little lower, because of rounding; the check is `_is_kept`
        lowest = largest + temperature * tl.log(min_p) * 1.000001
        floor = tl.maximum(floor, tl.minimum(lowest, largest))
    return floor


@triton.jit
def _is_kept(count, mass, value, largest, total, temperature, top_k, top_p, min_p):
    """Whether the filters keep a token that `count` tokens of `mass` are ranked before."""
    is_kept = (top_k <= 0) | (count < top_k)
    is_kept &= (top_p >= 1) | (mass < top_p * total)
    is_kept &= tl.exp((value - largest) / temperature) >= min_p
    # the most likely token stays whatever the filters say
    return is_kept | (count == 0)


@triton.jit
def _is_before(values, tokens, value, token):
    """Whether tokens are ranked before (value, token)."""
    return (values > value) | ((values == value) & (tokens < token))
