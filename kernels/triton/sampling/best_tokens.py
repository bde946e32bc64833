"""Finds the best token of each row of logits: of each of its chunks first, then among these.

Beside the tokens it keeps what filters and log-probabilities need of the rows.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.sampling.noise import (
    SMALLEST_TEMPERATURE,
    best_draw,
    draw_keys,
    first_token,
    score,
)

# two warps with 16 values per thread were the fastest of 1024 to 8192 tokens on an H200
CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkStats:
    """What is known of chunks of logits; each column is [S, num_chunks].

    Attributes:
        largest: float32; NaN if the chunk holds one.
        tokens: int32 token that wins the chunk.
        raw_sums: float32 sum of exp(logit - largest).
        scaled_sums: float32 sum of exp((logit - largest) / temperature).
        raw_largest: float32, of all tokens where masks rule some out; else None.
    """

    largest: Tensor
    tokens: Tensor
    raw_sums: Tensor
    scaled_sums: Tensor
    raw_largest: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestTokens:
    """What is known of rows of logits; each column is [S].

    Attributes:
        tokens: int64, the best ones without filters; -1 for none, -2 where masks leave none.
        logsumexps: float32, where the flags ask for them.
        largest, scaled_sums: float32, where the flags ask for sums and the row draws; the latter of
            exp((logit - largest) / temperature).
        chunks: of the rows.
    """

    tokens: Tensor
    logsumexps: Tensor
    largest: Tensor
    scaled_sums: Tensor
    chunks: ChunkStats


@triton.jit
def _chunk_kernel(
    largest_out,
    tokens_out,
    raw_sums_out,
    scaled_sums_out,
    raw_largest_out,
    logits,
    temperatures,
    seeds,
    positions,
    masks,
    mask_places,
    row_stride,
    vocab_size,
    num_words,
    num_chunks,
    IS_GREEDY: tl.constexpr,
    HAS_RAW_SUMS: tl.constexpr,
    HAS_SCALED_SUMS: tl.constexpr,
    HAS_MASKS: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    wait_for_inputs(OVERLAPPED)
    place = logits + row * row_stride + tokens
    values = tl.load(place, tokens < vocab_size, other=-float("inf")).to(tl.float32)
    largest = tl.max(values, axis=0)
    out = row * num_chunks + chunk
    has_nan = tl.max((values != values).to(tl.int32), axis=0) > 0
    if HAS_MASKS:
        tl.store(raw_largest_out + out, largest)
        mask = tl.load(mask_places + row).to(tl.int64)
        is_masked = (mask >= 0) & (tokens < vocab_size)
        words = tl.load(masks + mask * num_words + (tokens >> 5), is_masked, other=-1)
        is_ruled_out = ((words >> (tokens & 31)) & 1) == 0
        values = tl.where(is_ruled_out, -float("inf"), values)
        largest = tl.max(values, axis=0)
        if HAS_SCALED_SUMS:
            # for those who read the row again, to filter it
            tl.store(place, values.to(logits.dtype.element_ty), is_ruled_out)
    tl.store(largest_out + out, tl.where(has_nan, float("nan"), largest))
    # a chunk of nothing but -inf has no sum: -inf - -inf
    base = tl.where(largest == -float("inf"), 0.0, largest)
    if HAS_RAW_SUMS:
        tl.store(raw_sums_out + out, tl.sum(tl.exp(values - base), axis=0))
    temperature = 0.0
    if not IS_GREEDY:
        temperature = tl.load(temperatures + row)
    if temperature >= SMALLEST_TEMPERATURE:
        first_key, second_key = draw_keys(tl.load(seeds + row), tl.load(positions + row))
        _, token = best_draw(values, tokens, temperature, first_key, second_key)
        if HAS_SCALED_SUMS:
            scaled = (values - base) * (1.0 / temperature)
            tl.store(scaled_sums_out + out, tl.sum(tl.exp(scaled), axis=0))
    else:
        token = first_token(values == largest, tokens)
    # among NaN and where nothing can be drawn there may be none
    tl.store(tokens_out + out, tl.minimum(tl.maximum(token, 0), vocab_size - 1))


@triton.jit
def _merge_kernel(
    tokens_out,
    logsumexps_out,
    largest_out,
    scaled_sums_out,
    chunk_largest,
    chunk_tokens,
    chunk_raw_sums,
    chunk_scaled_sums,
    chunk_raw_largest,
    logits,
    temperatures,
    seeds,
    positions,
    row_stride,
    num_chunks,
    IS_GREEDY: tl.constexpr,
    HAS_RAW_SUMS: tl.constexpr,
    HAS_SCALED_SUMS: tl.constexpr,
    HAS_MASKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    is_chunk = chunks < num_chunks
    places = row * num_chunks + chunks
    wait_for_inputs(OVERLAPPED)
    maxima = tl.load(chunk_largest + places, is_chunk, other=-float("inf"))
    tokens = tl.load(chunk_tokens + places, is_chunk, other=0)
    largest = tl.max(maxima, axis=0)
    has_nan = tl.max((maxima != maxima).to(tl.int32), axis=0) > 0
    token = first_token(maxima == largest, tokens)
    if HAS_RAW_SUMS:
        sums = tl.load(chunk_raw_sums + places, is_chunk, other=0.0)
        total = tl.sum(sums * tl.exp(maxima - largest), axis=0)
        tl.store(logsumexps_out + row, largest + tl.log(total))
    if not IS_GREEDY:
        temperature = tl.load(temperatures + row)
        if temperature >= SMALLEST_TEMPERATURE:
            first_key, second_key = draw_keys(tl.load(seeds + row), tl.load(positions + row))
            winners = tl.load(logits + row * row_stride + tokens).to(tl.float32)
            scores = score(winners, tokens, temperature, first_key, second_key)
            # a chunk of which masks leave nothing has no winner
            scores = tl.where(is_chunk & (maxima != -float("inf")), scores, -float("inf"))
            token = first_token(scores == tl.max(scores, axis=0), tokens)
            if HAS_SCALED_SUMS:
                sums = tl.load(chunk_scaled_sums + places, is_chunk, other=0.0)
                total = tl.sum(sums * tl.exp((maxima - largest) / temperature), axis=0)
                tl.store(scaled_sums_out + row, total)
                tl.store(largest_out + row, largest)
    is_broken = has_nan | (tl.abs(largest) == float("inf"))
    if HAS_MASKS:
        raw = tl.load(chunk_raw_largest + places, is_chunk, other=-float("inf"))
        # what is ruled out may hide that the row is broken
        is_sound = (tl.abs(tl.max(raw, axis=0)) != float("inf")) & ~has_nan
        is_broken = ~is_sound
        token = tl.where(largest == -float("inf"), -2, token)
    tl.store(tokens_out + row, tl.where(is_broken, -1, token).to(tl.int64))


def find_best(
    logits: Tensor,
    draws: tuple[Tensor, ...],
    flags: dict[str, bool],
    masks: tuple[Tensor, Tensor] | None = None,
) -> BestTokens:
    """Find the best token of each row without filters.

    Args:
        logits: [S, vocab], any float dtype, rows contiguous.
        draws: temperatures, seeds and positions of the rows, see `SamplingColumns`.
        flags: IS_GREEDY, whether no row draws; HAS_RAW_SUMS, HAS_SCALED_SUMS, whether sums are
            wanted for log-probabilities and for filters.
        masks: masks and places of the rows, see `KernelBackend.mask_tokens`. What they rule out
            becomes -inf IN PLACE where sums for filters are wanted.
    """
    assert logits.stride(1) == 1
    num_rows = len(logits)
    chunks = _chunk(logits, draws, flags, masks)
    logsumexps, largest, scaled_sums = _floats(3, (num_rows,), logits.device)
    best = BestTokens(
        tokens=torch.empty(num_rows, dtype=torch.int64, device=logits.device),
        logsumexps=logsumexps,
        largest=largest,
        scaled_sums=scaled_sums,
        chunks=chunks,
    )
    num_chunks = chunks.largest.shape[1]
    _merge_kernel[(num_rows,)](
        best.tokens,
        logsumexps,
        largest,
        scaled_sums,
        chunks.largest,
        chunks.tokens,
        chunks.raw_sums,
        chunks.scaled_sums,
        chunks.raw_largest,
        logits,
        *draws,
        logits.stride(0),
        num_chunks,
        **flags,
        HAS_MASKS=masks is not None,
        CHUNKS=triton.next_power_of_2(num_chunks),
        num_warps=1,
        **overlap(logits.device),
    )
    return best


def _chunk(
    logits: Tensor,
    draws: tuple[Tensor, ...],
    flags: dict[str, bool],
    masks: tuple[Tensor, Tensor] | None,
) -> ChunkStats:
    num_rows, vocab_size = logits.shape
    num_chunks = triton.cdiv(vocab_size, CHUNK)
    num_words = triton.cdiv(vocab_size, 32)
    if masks is not None:
        assert masks[0].dtype == masks[1].dtype == torch.int32
        assert masks[0].shape[1] == num_words
        assert masks[0].is_contiguous()
        assert masks[1].shape == (num_rows,)
    largest, raw_sums, scaled_sums, raw = _floats(4, (num_rows, num_chunks), logits.device)
    stats = ChunkStats(
        largest=largest,
        raw_sums=raw_sums,
        scaled_sums=scaled_sums,
        raw_largest=None if masks is None else raw,
        tokens=torch.empty(num_rows, num_chunks, dtype=torch.int32, device=logits.device),
    )
    _chunk_kernel[(num_chunks, num_rows)](
        stats.largest,
        stats.tokens,
        stats.raw_sums,
        stats.scaled_sums,
        stats.raw_largest,
        logits,
        *draws,
        *(masks or (None, None)),
        logits.stride(0),
        vocab_size,
        num_words,
        num_chunks,
        **flags,
        HAS_MASKS=masks is not None,
        CHUNK=CHUNK,
        num_warps=2,
        **overlap(logits.device),
    )
    return stats


def _floats(count: int, shape: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """Separate tensors, since a part of one may begin where no kernel has been compiled for."""
    return [torch.empty(shape, dtype=torch.float32, device=device) for _ in range(count)]
