"""Packed masks against bits that are counted one by one."""

import pytest
import torch

from kernels import sampling
from kernels.triton.sampling import masking


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 307, 2048, 5000])
@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_what_has_no_bit_is_ruled_out(vocab_size: int, num_rows: int, device: torch.device) -> None:
    draw = torch.Generator().manual_seed(vocab_size)
    num_words = -(-vocab_size // 32)
    low, high = -(1 << 31), 1 << 31
    masks = torch.randint(low, high, (num_rows, num_words), generator=draw, dtype=torch.int64)
    is_allowed = torch.tensor(
        [
            [bool(row[token // 32] >> (token % 32) & 1) for token in range(vocab_size)]
            for row in masks.tolist()
        ],
        dtype=torch.bool,
    ).reshape(num_rows, vocab_size)
    scores = torch.randn(num_rows, vocab_size + 5, generator=draw)
    expected = scores.clone()
    # what lies beyond the vocabulary is not touched
    expected[:, :vocab_size].masked_fill_(~is_allowed, -torch.inf)
    for mask_tokens in (masking.mask_tokens, sampling.mask_tokens):
        computed = scores.clone().to(device)
        mask_tokens(computed[:, :vocab_size], masks.int().to(device))
        assert torch.equal(computed.cpu(), expected)


def test_rows_find_their_masks_by_place(device: torch.device) -> None:
    masks = torch.tensor([[1 << 5, 0], [0, 1 << 3]], dtype=torch.int32, device=device)
    places = torch.tensor([1, -1, 0, 1], dtype=torch.int32, device=device)
    for mask_tokens in (masking.mask_tokens, sampling.mask_tokens):
        scores = torch.zeros(4, 40, device=device)
        mask_tokens(scores, masks, places)
        left = [row.isfinite().nonzero().flatten().tolist() for row in scores.cpu()]
        assert left == [[35], list(range(40)), [5], [35]]
