"""Rules out the tokens whose bit is not set in masks. Twin: `kernels.sampling.mask_tokens`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.launch import overlap, wait_for_inputs

_WORDS = 64
_WORD_BITS = tl.constexpr(32)


@triton.jit
def _mask_kernel(
    scores,
    masks,
    places,
    row_stride,
    vocab_size,
    num_words,
    WORDS: tl.constexpr,
    HAS_PLACES: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    words = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    wait_for_inputs(OVERLAPPED)
    place = tl.load(places + row).to(tl.int64) if HAS_PLACES else row
    if place >= 0:
        packed = tl.load(masks + place * num_words + words, words < num_words, other=0)
        bits = tl.arange(0, _WORD_BITS)
        is_allowed = ((packed[:, None] >> bits[None, :]) & 1) != 0
        tokens = words[:, None] * _WORD_BITS + bits[None, :]
        targets = scores + row * row_stride + tokens
        tl.store(targets, -float("inf"), (tokens < vocab_size) & ~is_allowed)


def mask_tokens(scores: Tensor, masks: Tensor, places: Tensor | None = None) -> None:
    """Set scores [K, vocab] float32 to -inf IN PLACE where no bit is set.

    Args:
        scores: rows contiguous.
        masks: [N, ceil(vocab / 32)] int32, contiguous.
        places: [K] int32, contiguous, which of the masks is a row's, or -1 for none; None where N
            is K and they are in order.
    """
    num_rows, vocab_size = scores.shape
    num_words = triton.cdiv(vocab_size, 32)
    assert masks.shape[1] == num_words
    assert len(masks if places is None else places) == num_rows
    assert masks.dtype == torch.int32
    assert masks.is_contiguous()
    assert scores.stride(1) == 1
    if num_rows:
        _mask_kernel[(triton.cdiv(num_words, _WORDS), num_rows)](
            scores,
            masks,
            places,
            scores.stride(0),
            vocab_size,
            num_words,
            WORDS=_WORDS,
            HAS_PLACES=places is not None,
            **overlap(scores.device),
        )
