"""Packed masks against bits that are counted one by one; choices among what they leave."""

from dataclasses import replace

import pytest
import torch

from kernels import sampling
from kernels.reference import ReferenceBackend
from kernels.sampling import BROKEN, NONE_LEFT
from kernels.triton.sampling import masking, sample
from tests.kernels.batches import make_columns
from tests.kernels.triton.sampling.test_sample import TEMPERATURES, make_logits, to_device


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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    ("filters", "vocab_size", "dtype"),
    [
        (None, 2500, torch.bfloat16),
        ({}, 1, torch.float32),
        ({}, 2500, torch.float16),
        ({"top_k": [1, 3, 50, 9, 40, 1200], "top_p": 0.9, "min_p": 0.01}, 2500, torch.float32),
        ({"top_k": [1, 5, 16, 17, 9, 3], "top_p": 0.9}, 17000, torch.bfloat16),
    ],
    ids=str,
)
def test_choices_among_what_masks_leave_equal_the_reference(
    filters: dict[str, float] | None, vocab_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    draw = torch.Generator().manual_seed(vocab_size)
    num_words = -(-vocab_size // 32)
    # few tokens are left, and in one row all have a place but one
    masks = torch.randint(-(1 << 31), 1 << 31, (4, num_words), generator=draw, dtype=torch.int64)
    for _ in range(3):
        masks[:3] &= masks[:3].roll(1, dims=1)
    masks, places = masks.int().to(device), torch.tensor([2, -1, 0, 3, 1, 2], dtype=torch.int32)
    logits = make_logits(vocab_size, device).to(dtype)
    columns = make_columns(6, temperature=TEMPERATURES, **(filters or {}))  # type: ignore[arg-type]
    if filters is None:
        columns = replace(columns, all_greedy=True)
    columns = to_device(columns, device)
    places = places.to(device)
    expected = ReferenceBackend(device, dtype).sample_masked(logits.clone(), columns, masks, places)
    chosen = sample.sample_masked(logits, columns, masks, places)
    assert torch.equal(chosen.tokens, expected.tokens)
    assert chosen.logprobs is None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_hide_no_broken_row(temperature: float, device: torch.device) -> None:
    values = torch.zeros(7, 1500)
    values[:, 7] = 60.0
    values[1, 3], values[2, 3], values[3, 1400] = torch.nan, torch.inf, torch.nan
    values[4] = values[5, 5] = -torch.inf
    # the first has no mask, the others leave token 5, which is broken in one, or nothing
    masks = torch.zeros(2, 47, dtype=torch.int32, device=device)
    masks[0, 0] = 1 << 5
    places = torch.tensor([-1, 0, 0, 1, 0, 0, 0], dtype=torch.int32, device=device)
    expected = [7, BROKEN, BROKEN, BROKEN, BROKEN, NONE_LEFT, 5]
    columns = to_device(make_columns(7, temperature=temperature), device)
    if not temperature:
        columns = replace(columns, all_greedy=True)
    chosen = sample.sample_masked(values.to(device), columns, masks, places)
    assert chosen.tokens.tolist() == expected
