"""Log-probabilities of the raw distribution: of chosen tokens, and the most likely ones.

The maxima of a row's chunks say which chunk holds the next most likely token, so listing n of them
reads n chunks rather than the row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.batch import Sampled
from kernels.triton.launch import overlap, wait_for_inputs
from kernels.triton.sampling.best_tokens import CHUNK, BestTokens
from kernels.triton.sampling.noise import first_token


@triton.jit(do_not_specialize=["num_rows"])
def _chosen_kernel(
    logprobs_out,
    tokens,
    logits,
    logsumexps,
    row_stride,
    num_rows,
    BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row = rows < num_rows
    wait_for_inputs(OVERLAPPED)
    # a broken row has token -1
    chosen = tl.maximum(tl.load(tokens + rows, is_row, other=0), 0)
    values = tl.load(logits + rows.to(tl.int64) * row_stride + chosen, is_row).to(tl.float32)
    tl.store(logprobs_out + rows, values - tl.load(logsumexps + rows, is_row), is_row)


@triton.jit(do_not_specialize=["num_top"])
def _top_kernel(
    top_tokens_out,
    top_logprobs_out,
    logits,
    logsumexps,
    chunk_largest,
    row_stride,
    vocab_size,
    num_chunks,
    num_top,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    places = tl.arange(0, CHUNK)
    wait_for_inputs(OVERLAPPED)
    place = chunk_largest + row * num_chunks + chunks
    # NaN is no maximum of what remains; its row has NaN for all log-probabilities
    maxima = tl.load(place, chunks < num_chunks, other=-float("inf"))
    logsumexp = tl.load(logsumexps + row)
    last_value, last_token = float("inf"), -1
    for index in range(num_top):
        value = tl.max(maxima, axis=0)
        chunk = tl.minimum(first_token(maxima == value, chunks), num_chunks - 1)
        tokens = chunk * CHUNK + places
        is_token = tokens < vocab_size
        values = tl.load(logits + row * row_stride + tokens, is_token, other=-float("inf"))
        values = values.to(tl.float32)
        # what is listed already comes before the last one, which is not in this chunk at first
        is_left = (values < last_value) | ((values == last_value) & (tokens > last_token))
        token = first_token(is_token & is_left & (values == value), tokens)
        token = tl.minimum(token, vocab_size - 1)
        is_next = (values < value) | ((values == value) & (tokens > token))
        rest = tl.max(tl.where(is_next, values, -float("inf")), axis=0)
        maxima = tl.where(chunks == chunk, rest, maxima)
        tl.store(top_tokens_out + row * num_top + index, token.to(tl.int64))
        tl.store(top_logprobs_out + row * num_top + index, value - logsumexp)
        last_value, last_token = value, token


def report_logprobs(tokens: Tensor, logits: Tensor, num_logprobs: int, best: BestTokens) -> Sampled:
    """Attach log-probabilities to chosen tokens.

    Args:
        tokens: [S] int64, -1 for none.
        logits: [S, vocab], rows contiguous.
        num_logprobs: most likely tokens to list; 0 for only those of the chosen tokens.
        best: found with raw sums.

    Returns:
        As `kernels.sampling.with_logprobs`; of equal logits the lower token comes first.
    """
    num_rows, vocab_size = logits.shape
    logsumexps, chunk_largest = best.logsumexps, best.chunks.largest
    logprobs = torch.empty_like(logsumexps)
    _chosen_kernel[(triton.cdiv(num_rows, 32),)](
        logprobs,
        tokens,
        logits,
        logsumexps,
        logits.stride(0),
        num_rows,
        BLOCK=32,
        num_warps=1,
        **overlap(logits.device),
    )
    num_top = min(num_logprobs, vocab_size)
    if num_top == 0:
        return Sampled(tokens=tokens, logprobs=logprobs)
    shape, device = (num_rows, num_top), logits.device
    top_tokens = torch.empty(shape, dtype=torch.int64, device=device)
    top_logprobs = torch.empty(shape, dtype=torch.float32, device=device)
    num_chunks = chunk_largest.shape[1]
    _top_kernel[(num_rows,)](
        top_tokens,
        top_logprobs,
        logits,
        logsumexps,
        chunk_largest,
        logits.stride(0),
        vocab_size,
        num_chunks,
        num_top,
        CHUNK=CHUNK,
        CHUNKS=triton.next_power_of_2(num_chunks),
        num_warps=1,
        **overlap(device),
    )
    return Sampled(
        tokens=tokens, logprobs=logprobs, top_tokens=top_tokens, top_logprobs=top_logprobs
    )
