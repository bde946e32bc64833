"""Top-k, top-p and min-p without sorting: draw, check, and draw again among what may still win.

The draw is the argmax of scores over the tokens that the filters keep. Take the argmax over all
tokens first. If it is kept it is the answer, since it wins among more. If not, no token ranked
after it is kept either, so the next argmax is taken among those ranked before. A draw is kept with
a probability near top_p, so few rounds are needed however many tokens are kept; for top-k the
rounds start from the k-th largest logit, which is found digit by digit.

Tokens are ranked by logit, equal ones by token id. Twin: `kernels.sampling.mask_unlikely`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import SamplingColumns
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.noise import best_draw, draw_keys

_BLOCK = 8192
# a row is one program's work, and 16 warps hide the latency of its loads
_NUM_WARPS = 16
# leading bytes of a float32 that tell apart all values of the dtype it came from
_KEY_BYTES = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 4}


@triton.jit
def _load_block(row, start, vocab_size, BLOCK: tl.constexpr):
    tokens = start + tl.arange(0, BLOCK)
    values = tl.load(row + tokens, tokens < vocab_size, other=-float("inf"))
    return values.to(tl.float32), tokens


@triton.jit
def _rank(row, vocab_size, value, token, largest, temperature, BLOCK: tl.constexpr):
    """How many tokens come before (value, token), and their sum of exp((logit - largest) / t)."""
    inverse = 1.0 / temperature
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        values, tokens = _load_block(row, start, vocab_size, BLOCK)
        is_before = (values > value) | ((values == value) & (tokens < token))
        counts += is_before.to(tl.int32)
        masses += tl.where(is_before, tl.exp((values - largest) * inverse), 0.0)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0)


@triton.jit
def _draw_before(
    row, vocab_size, value, token, floor, temperature, first_key, second_key, BLOCK: tl.constexpr
):
    """The best token before (value, token) whose logit is at least `floor`."""
    best, drawn = -float("inf"), token
    for start in range(0, vocab_size, BLOCK):
        values, tokens = _load_block(row, start, vocab_size, BLOCK)
        is_before = (values > value) | ((values == value) & (tokens < token))
        is_open = is_before & (values >= floor)
        if tl.max(is_open.to(tl.int32), axis=0) > 0:
            open_values = tl.where(is_open, values, -float("inf"))
            scored, winner = best_draw(open_values, tokens, temperature, first_key, second_key)
            # blocks come in the order of tokens, so of equal scores the lower token stays
            drawn = tl.where(scored > best, winner, drawn)
            best = tl.maximum(scored, best)
    return drawn


@triton.jit
def _ordered(values):
    """Map float32 to uint32 in the same order; both zeros to one number."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -(2**31))).to(tl.uint32, bitcast=True)


@triton.jit
def _kth_largest(row, vocab_size, k, KEY_BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th largest logit, and how many of those equal to it are among the k largest."""
    digits = tl.arange(0, 256)
    prefix = 0
    rest = k
    for byte in tl.static_range(KEY_BYTES):
        counts = tl.zeros([256], tl.int32)
        for start in range(0, vocab_size, BLOCK):
            values, tokens = _load_block(row, start, vocab_size, BLOCK)
            keys = _ordered(values)
            is_open = tokens < vocab_size
            if byte > 0:
                is_open = is_open & ((keys >> (32 - 8 * byte)) == prefix)
            digit = ((keys >> (24 - 8 * byte)) & 255).to(tl.int32)
            counts += tl.histogram(digit, 256, mask=is_open)
        # tokens with a larger digit
        above = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        chosen = tl.max(tl.where(above + counts >= rest, digits, 0), axis=0)
        rest -= tl.sum(tl.where(digits == chosen, above, 0), axis=0)
        prefix = (prefix << 8) | chosen.to(tl.uint32)
    num_low_bits: tl.constexpr = 32 - 8 * KEY_BYTES
    key = (prefix << num_low_bits).to(tl.int32, bitcast=True)
    # the low bits of every logit are 0
    bits = tl.where(key < 0, key ^ -(2**31), ~key) & -(1 << num_low_bits)
    return bits.to(tl.float32, bitcast=True), rest


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
    row_stride,
    vocab_size,
    KEY_BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    wait_for_inputs(OVERLAPPED)
    token = tl.load(tokens_out + index).to(tl.int32)
    temperature = tl.load(temperatures + index)
    top_k = tl.load(top_ks + index)
    top_p = tl.load(top_ps + index)
    min_p = tl.load(min_ps + index)
    is_top_k = (top_k > 0) & (top_k < vocab_size)
    if (token >= 0) & (temperature > 0) & (is_top_k | (top_p < 1) | (min_p > 0)):
        row = logits + index * row_stride
        first_key, second_key = draw_keys(tl.load(seeds + index), tl.load(positions + index))
        largest = tl.load(all_largest + index)
        total = tl.load(scaled_sums + index)
        floor = -float("inf")
        if is_top_k:
            floor, num_equal = _kth_largest(row, vocab_size, top_k, KEY_BYTES, BLOCK)
            if top_p < 1:
                _, above = _rank(row, vocab_size, floor, -1, largest, temperature, BLOCK)
                total = above + num_equal * tl.exp((floor - largest) / temperature)
        if min_p > 0:
            # a token less than this far below the largest passes, up to rounding
            floor = tl.maximum(floor, largest + temperature * tl.log(min_p) * 1.000001)
        value = tl.load(row + token).to(tl.float32)
        if value < floor:
            # before the last possible token lie all of them
            token = _draw_before(
                row,
                vocab_size,
                -float("inf"),
                vocab_size,
                floor,
                temperature,
                first_key,
                second_key,
                BLOCK,
            )
        is_kept = token < 0
        while not is_kept:
            value = tl.load(row + token).to(tl.float32)
            count, mass = _rank(row, vocab_size, value, token, largest, temperature, BLOCK)
            is_kept = (top_k <= 0) | (count < top_k)
            is_kept &= (top_p >= 1) | (mass < top_p * total)
            is_kept &= tl.exp((value - largest) / temperature) >= min_p
            # the most likely token stays whatever the filters say
            is_kept |= count == 0
            if not is_kept:
                token = _draw_before(
                    row, vocab_size, value, token, floor, temperature, first_key, second_key, BLOCK
                )
        tl.store(tokens_out + index, token.to(tl.int64))


def filter_rows(
    tokens: Tensor, logits: Tensor, columns: SamplingColumns, largest: Tensor, scaled_sums: Tensor
) -> None:
    """Replace, IN PLACE, drawn tokens that a row's filters exclude.

    Args:
        tokens: [S] int64, the draws without filters; -1 where there is none.
        logits: [S, vocab], float32, float16 or bfloat16, rows contiguous.
        largest: [S] float32 maximum of each row.
        scaled_sums: [S] float32 sum of exp((logit - largest) / temperature) of each row.
    """
    assert columns.top_k.dtype == torch.int32
    _filter_kernel[(len(logits),)](
        tokens,
        logits,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        columns.seeds,
        columns.positions,
        largest,
        scaled_sums,
        logits.stride(0),
        logits.shape[1],
        KEY_BYTES=_KEY_BYTES[logits.dtype],
        BLOCK=_BLOCK,
        num_warps=_NUM_WARPS,
        **overlap(logits.device),
    )
