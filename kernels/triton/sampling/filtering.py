"""Top-k, top-p and min-p without sorting, see `kernels.triton.sampling.redrawing`.

With top-k the logits that may be among the k largest are collected first, as far as they fit, and
nothing else is read. Twin: `kernels.sampling.mask_unlikely`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.batch import SamplingColumns
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.sampling.best_tokens import CHUNK, BestTokens
from kernels.triton.sampling.noise import SMALLEST_TEMPERATURE, draw_keys, score
from kernels.triton.sampling.redrawing import draw_collected, draw_row
from kernels.triton.sampling.selection import CAPACITY, collect, kth_of_chunks

_BLOCK = 8192
# a row is one program's work, and 16 warps hide the latency of its loads
_NUM_WARPS = 16
# leading bytes of a float32 that distinguish all values of the dtype it came from
_KEY_BYTES = {torch.bfloat16: 2, torch.float16: 3, torch.float32: 4}


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
    is_filtered = is_top_k | (top_p < 1) | (min_p > 0)
    is_filtered = is_filtered & (temperature >= SMALLEST_TEMPERATURE)
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
            token = draw_collected(
                values, tokens, largest, temperature, top_k, top_p, min_p, first_key, second_key
            )
        else:
            chunks = tl.arange(0, CHUNKS)
            is_chunk = chunks < num_chunks
            winners = tl.load(chunk_tokens + index * num_chunks + chunks, is_chunk, other=0)
            winner_logits = tl.load(row + winners).to(tl.float32)
            scores = score(winner_logits, winners, temperature, first_key, second_key)
            token = draw_row(
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


def filter_rows(best: BestTokens, logits: Tensor, columns: SamplingColumns) -> None:
    """Replace, IN PLACE, those of the best tokens that a row's filters exclude.

    Args:
        best: found with scaled sums.
        logits: [S, vocab], float32, float16 or bfloat16, rows contiguous.
    """
    assert columns.top_k.dtype == torch.int32
    chunks = best.chunks
    num_chunks = chunks.largest.shape[1]
    _filter_kernel[(len(logits),)](
        best.tokens,
        logits,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.min_p,
        columns.seeds,
        columns.positions,
        best.largest,
        best.scaled_sums,
        chunks.largest,
        chunks.tokens,
        best.largest.new_empty(len(logits), CAPACITY),
        chunks.tokens.new_empty(len(logits), CAPACITY),
        chunks.tokens.new_empty(len(logits)),
        logits.stride(0),
        logits.shape[1],
        num_chunks,
        KEY_BYTES=_KEY_BYTES[logits.dtype],
        BLOCK=_BLOCK,
        CHUNK=CHUNK,
        CHUNKS=triton.next_power_of_2(num_chunks),
        CAPACITY=CAPACITY,
        num_warps=_NUM_WARPS,
        **overlap(logits.device),
    )
