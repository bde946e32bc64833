"""Bits of tokens."""

import numpy as np
import pytest

from engine.worker.sampling.token_masks import Mask, allow, allow_only, full_mask, rule_out


def _tokens(mask: Mask) -> set[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


@pytest.mark.parametrize("vocab_size", [1, 32, 33, 307])
def test_a_full_mask_allows_everything(vocab_size: int) -> None:
    masks = full_mask(3, vocab_size)
    assert masks.shape == (3, -(-vocab_size // 32))
    assert all(_tokens(mask) >= set(range(vocab_size)) for mask in masks)


def test_tokens_are_ruled_out_and_allowed_one_by_one() -> None:
    mask = full_mask(1, 96)[0]
    rule_out(mask, (0, 31, 32, 95))
    assert _tokens(mask) == set(range(96)) - {0, 31, 32, 95}
    allow(mask, (31,))
    assert _tokens(mask) == set(range(96)) - {0, 32, 95}
    allow_only(mask, (63, 64))
    assert _tokens(mask) == {63, 64}


def test_ids_that_a_mask_does_not_have_are_left_out() -> None:
    mask = full_mask(1, 32)[0]
    rule_out(mask, (-1, -32, 32, 10_000))
    assert len(_tokens(mask)) == 32
    allow_only(mask, (-1, 32))
    assert _tokens(mask) == set()
