"""Top-k, top-p and min-p without sorting: draw, check, and draw again among what may still win.

The draw is the argmax of scores over the tokens that the filters keep. Take the argmax over all
tokens first. If it is kept it is the answer, since it wins among more. If not, no token ranked
after it is kept either, so the next argmax is taken among those ranked before. A draw is kept with
a probability near top_p, so few rounds are needed however many tokens are kept. For the next argmax
only those chunks are read again whose winner is ruled out and was ahead of all others.

With top-k the logits that may be among the k largest are collected first, as far as they fit, and
the rounds read nothing else. Tokens are ranked by logit, equal ones by token id. Twin:
`kernels.sampling.mask_unlikely`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import SamplingColumns
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.noise import best_draw, draw_keys, first_token, score
from kernels.triton.selection import (
    CAPACITY,
    collect,
    kth_of_block,
    kth_of_chunks,
    kth_of_row,
    load_block,
)

_BLOCK = 8192
# a row is one program's work, and 16 warps hide the latency of its loads
_NUM_WARPS = 16
# leading bytes of a float32 that tell apart all values of the dtype it came from
_KEY_BYTES = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 4}

# of the largest probability; 2048 of them stay below 2**63
_MASS_UNIT = tl.constexpr(2.0**40)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStats:
    """What is known of rows of logits before their filters.

    Attributes:
        largest: [S] float32.
        scaled_sums: [S] float32 sum of exp((logit - largest) / temperature).
        chunk_largest, chunk_tokens: [S, num_chunks] float32 and int32, the maximum of each chunk
            and the token that wins it.
        chunk_len: tokens of a chunk.
    """

    largest: Tensor
    scaled_sums: Tensor
    chunk_largest: Tensor
    chunk_tokens: Tensor
    chunk_len: int


@triton.jit
def _is_before(values, tokens, value, token):
    """Whether tokens are ranked before (value, token)."""
    return (values > value) | ((values == value) & (tokens < token))


@triton.jit
def _is_kept(count, mass, value, largest, total, temperature, top_k, top_p, min_p):
    """Whether the filters keep a token that `count` tokens of `mass` are ranked before."""
    is_kept = (top_k <= 0) | (count < top_k)
    is_kept &= (top_p >= 1) | (mass < top_p * total)
    is_kept &= tl.exp((value - largest) / temperature) >= min_p
    # the most likely token stays whatever the filters say
    return is_kept | (count == 0)


@triton.jit
def _raise_floor(floor, largest, temperature, min_p):
    """The least logit that min-p may keep, or `floor` if that is larger."""
    if min_p > 0:
        # a little lower, because of rounding; the check is `_is_kept`
        lowest = largest + temperature * tl.log(min_p) * 1.000001
        floor = tl.maximum(floor, tl.minimum(lowest, largest))
    return floor


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
def _draw_collected(
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
def _draw_row(
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
def _filter_kernel(
    tokens_out,
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    all_largest,
    scaled_sums,
    chunk_largest,
    chunk_tokens,
    collected_values,
    collected_tokens,
    counters,
    row_stride,
    vocab_size,
    num_chunks,
    KEY_BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CAPACITY: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    wait_for_inputs(OVERLAPPED)
    temperature = tl.load(temperatures + index)
    top_k = tl.load(top_ks + index)
    top_p = tl.load(top_ps + index)
    min_p = tl.load(min_ps + index)
    is_top_k = (top_k > 0) & (top_k < vocab_size)
    is_filtered = (temperature > 0) & (is_top_k | (top_p < 1) | (min_p > 0))
    if is_filtered & (tl.load(tokens_out + index) >= 0):
        row = logits + index * row_stride
        first_key, second_key = draw_keys(tl.load(seeds + index), tl.load(positions + index))
        largest = tl.load(all_largest + index)
        num_collected = CAPACITY + 1
        own_values = collected_values + index * CAPACITY
        own_tokens = collected_tokens + index * CAPACITY
        if is_top_k & (top_k <= num_chunks):
            floor = kth_of_chunks(chunk_largest + index * num_chunks, num_chunks, top_k, CHUNKS)
            num_collected = collect(
                own_values, own_tokens, counters + index, row, vocab_size, floor, BLOCK, CAPACITY
            )
        if num_collected <= CAPACITY:
            places = tl.arange(0, CAPACITY)
            is_place = places < num_collected
            values = tl.load(own_values + places, is_place, other=-float("inf"))
            tokens = tl.load(own_tokens + places, is_place, other=vocab_size)
            token = _draw_collected(
                values, tokens, largest, temperature, top_k, top_p, min_p, first_key, second_key
            )
        else:
            chunks = tl.arange(0, CHUNKS)
            is_chunk = chunks < num_chunks
            winners = tl.load(chunk_tokens + index * num_chunks + chunks, is_chunk, other=0)
            winner_logits = tl.load(row + winners).to(tl.float32)
            scores = score(winner_logits, winners, temperature, first_key, second_key)
            token = _draw_row(
                row,
                vocab_size,
                tl.where(is_chunk, scores, -float("inf")),
                winners,
                largest,
                tl.load(scaled_sums + index),
                temperature,
                top_k,
                top_p,
                min_p,
                first_key,
                second_key,
                KEY_BYTES,
                BLOCK,
                CHUNK,
            )
        tl.store(tokens_out + index, token.to(tl.int64))


def filter_rows(tokens: Tensor, logits: Tensor, columns: SamplingColumns, stats: RowStats) -> None:
    """Replace, IN PLACE, drawn tokens that a row's filters exclude.

    Args:
        tokens: [S] int64, the draws without filters; -1 where there is none.
        logits: [S, vocab], float32, float16 or bfloat16, rows contiguous.
    """
    assert columns.top_k.dtype == torch.int32
    num_chunks = stats.chunk_largest.shape[1]
    _filter_kernel[(len(logits),)](
        tokens,
        logits,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        columns.seeds,
        columns.positions,
        stats.largest,
        stats.scaled_sums,
        stats.chunk_largest,
        stats.chunk_tokens,
        stats.largest.new_empty(len(logits), CAPACITY),
        stats.chunk_tokens.new_empty(len(logits), CAPACITY),
        stats.chunk_tokens.new_empty(len(logits)),
        logits.stride(0),
        logits.shape[1],
        num_chunks,
        KEY_BYTES=_KEY_BYTES[logits.dtype],
        BLOCK=_BLOCK,
        CHUNK=stats.chunk_len,
        CHUNKS=triton.next_power_of_2(num_chunks),
        CAPACITY=CAPACITY,
        num_warps=_NUM_WARPS,
        **overlap(logits.device),
    )
