"""Packed masks of tokens: a bit for each, the lowest bit of an int32 word first; on the host."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.integers import div_ceil

WORD_BITS = 32

# [ceil(vocab_size / 32)] int32
Mask: TypeAlias = NDArray[np.int32]


def full_mask(num_rows: int, vocab_size: int) -> NDArray[np.int32]:
    """Masks [num_rows, ceil(vocab_size / 32)] that allow everything."""
    return np.full((num_rows, div_ceil(vocab_size, WORD_BITS)), -1, np.int32)


def allow(mask: Mask, tokens: Sequence[int]) -> None:
    """Set the bits of tokens, IN PLACE; ids that the mask does not have are left out."""
    for word, flag in _flags(mask, tokens):
        mask[word] |= flag


def rule_out(mask: Mask, tokens: Sequence[int]) -> None:
    """Clear the bits of tokens, IN PLACE; ids that the mask does not have are left out."""
    for word, flag in _flags(mask, tokens):
        mask[word] &= ~flag


def allow_only(mask: Mask, tokens: Sequence[int]) -> None:
    """Set the bits of tokens and clear all others, IN PLACE."""
    mask[:] = 0
    allow(mask, tokens)


def _flags(mask: Mask, tokens: Sequence[int]) -> list[tuple[int, np.int32]]:
    places = [divmod(token, WORD_BITS) for token in tokens]
    return [
        (word, np.uint32(1 << bit).view(np.int32)) for word, bit in places if 0 <= word < len(mask)
    ]
