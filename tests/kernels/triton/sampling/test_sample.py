"""Tokens, filters and log-probabilities equal those of the torch twin, draw for draw."""

from dataclasses import fields, replace

import pytest
import torch

from kernels import sampling as twin
from kernels.batch import SamplingColumns
from kernels.triton.sampling import sample as sampling
from tests.kernels.batches import make_columns, spoiled, take_row

pytestmark = [
    pytest.mark.usefixtures("poisoned_outputs"),
    # the interpreter computes with numpy, which warns of what is meant: inf - inf
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
TEMPERATURES = [1.0, 0.0, 0.7, 1.3, 0.2, 5.0]


def to_device(columns: SamplingColumns, device: torch.device) -> SamplingColumns:
    tensors = {
        field.name: value.to(device)
        for field in fields(columns)
        if isinstance(value := getattr(columns, field.name), torch.Tensor)
    }
    return replace(columns, **tensors)  # type: ignore[arg-type]


def make_logits(vocab_size: int, device: torch.device, *, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return (torch.randn(len(TEMPERATURES), vocab_size, generator=generator) * spread).to(device)


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 1024, 2500])
def test_draws_equal_the_twin(vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
    logits = make_logits(vocab_size, device).to(dtype)
    columns = to_device(make_columns(6, temperature=TEMPERATURES, num_logprobs=3), device)
    sampled, expected = sampling.sample(logits, columns), twin.sample(logits, columns)
    assert torch.equal(sampled.tokens, expected.tokens)
    torch.testing.assert_close(sampled.logprobs, expected.logprobs)
    torch.testing.assert_close(sampled.top_logprobs, expected.top_logprobs)
    assert sampled.top_tokens is not None
    by_token = torch.log_softmax(logits.float(), dim=-1).gather(1, sampled.top_tokens)
    torch.testing.assert_close(by_token, sampled.top_logprobs)


@pytest.mark.parametrize(
    ("filters", "vocab_size", "dtype"),
    [
        ({"top_k": [1, 2, 3, 50, 1999, 9999]}, 2000, torch.float32),
        ({"top_k": [1, 2, 3, 50, 1999, 9999]}, 2000, torch.bfloat16),
        ({"top_k": [0, 5, 40, 700, 1, 3000], "top_p": 0.9}, 2000, torch.float16),
        # no more than there are chunks, so that candidates are collected
        ({"top_k": [1, 5, 16, 17, 9, 3], "top_p": 0.9}, 17000, torch.bfloat16),
        ({"top_k": [1, 5, 16, 17, 9, 3], "min_p": 0.3}, 17000, torch.float32),
        ({"top_p": 0.6}, 9000, torch.float32),
        ({"top_p": 1e-9}, 500, torch.bfloat16),
        ({"min_p": 0.2}, 2000, torch.float32),
        ({"min_p": 1.0}, 2000, torch.bfloat16),
        ({"top_k": 30, "top_p": 0.8, "min_p": 0.05}, 2000, torch.float32),
    ],
    ids=str,
)
def test_filtered_draws_equal_the_twin(
    filters: dict[str, float], vocab_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    logits = make_logits(vocab_size, device).to(dtype)
    columns = make_columns(6, temperature=TEMPERATURES, **filters)  # type: ignore[arg-type]
    columns = to_device(columns, device)
    assert torch.equal(sampling.sample(logits, columns).tokens, twin.sample(logits, columns).tokens)


def test_greedy_rows_take_the_lowest_of_equal_maxima(device: torch.device) -> None:
    logits = torch.zeros(2, 3000, device=device)
    logits[0, [1500, 2999]] = 1.0
    greedy = to_device(make_columns(2, temperature=0.0), device)
    assert sampling.sample(logits, greedy).tokens.tolist() == [1500, 0]
    mixed = to_device(make_columns(2, temperature=[0.0, 1.0]), device)
    assert sampling.sample(logits, mixed).tokens.tolist()[0] == 1500


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.5)])
def test_broken_rows_get_no_token_and_spoil_no_other(
    temperature: float, top_p: float, device: torch.device
) -> None:
    logits = torch.randn(5, 1100, device=device)
    whole = logits.clone()
    logits[0, 1050] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    logits[3] = torch.nan
    columns = make_columns(5, temperature=temperature, top_p=top_p, num_logprobs=2)
    columns = to_device(columns, device)
    sampled = sampling.sample(logits, columns)
    assert sampled.tokens.tolist()[:4] == [twin.BROKEN] * 4
    assert sampled.tokens[4] == twin.sample(whole, columns).tokens[4]
    assert sampled.top_tokens is not None
    assert ((sampled.top_tokens >= 0) & (sampled.top_tokens < 1100)).all()


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_tokens_that_are_ruled_out_are_never_drawn(
    filters: dict[str, float], device: torch.device
) -> None:
    logits = torch.full((4, 5000), -torch.inf, device=device)
    allowed = [7, 1023, 4999]
    logits[:, allowed] = torch.tensor([0.1, 0.2, 0.3], device=device)
    columns = make_columns(4, num_logprobs=5, **filters)  # type: ignore[arg-type]
    columns = to_device(columns, device)
    sampled, expected = sampling.sample(logits, columns), twin.sample(logits, columns)
    assert torch.equal(sampled.tokens, expected.tokens)
    torch.testing.assert_close(sampled.top_logprobs, expected.top_logprobs)


def test_a_row_draws_the_same_alone_and_in_a_batch(device: torch.device) -> None:
    logits = make_logits(2500, device)
    columns = make_columns(6, temperature=TEMPERATURES, top_k=[0, 0, 3, 0, 5, 9], num_logprobs=2)
    together = sampling.sample(logits, to_device(columns, device))
    for row in range(6):
        one = to_device(take_row(columns, row), device)
        single = sampling.sample(logits[row : row + 1].clone(), one)
        assert single.tokens[0] == together.tokens[row]
        assert single.logprobs is not None
        assert together.logprobs is not None
        assert single.logprobs[0] == together.logprobs[row]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_flags_make_pointless_is_not_read(temperature: float, device: torch.device) -> None:
    logits = make_logits(300, device)
    columns = to_device(make_columns(len(logits), temperature=temperature), device)
    tokens = sampling.sample(logits, spoiled(columns)).tokens
    assert torch.equal(tokens, sampling.sample(logits, columns).tokens)


def test_no_logprobs_unless_a_row_wants_them(device: torch.device) -> None:
    logits = torch.randn(2, 9, device=device)
    none = sampling.sample(logits, to_device(make_columns(2), device))
    assert (none.logprobs, none.top_tokens, none.top_logprobs) == (None, None, None)
    chosen = sampling.sample(logits, to_device(make_columns(2, num_logprobs=0), device))
    assert chosen.logprobs is not None
    assert chosen.top_tokens is None
    assert len(sampling.sample(logits[:0], to_device(make_columns(0), device)).tokens) == 0


@pytest.mark.parametrize("columns", [{"temperature": 0.0}, {"top_p": 0.9}, {}], ids=str)
def test_log_probabilities_by_themselves_have_the_same_bits(
    columns: dict[str, float], device: torch.device
) -> None:
    logits = make_logits(2500, device).to(torch.bfloat16)
    every = make_columns(6, num_logprobs=5, **columns)  # type: ignore[arg-type]
    sampled = sampling.sample(logits, to_device(every, device))
    for count in (0, 5):
        again = sampling.report_logprobs(sampled.tokens, logits, count)
        assert torch.equal(again.tokens, sampled.tokens)
        torch.testing.assert_close(again.logprobs, sampled.logprobs, rtol=0, atol=0)
        if count:
            torch.testing.assert_close(again.top_tokens, sampled.top_tokens, rtol=0, atol=0)
            torch.testing.assert_close(again.top_logprobs, sampled.top_logprobs, rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [1.0, 5.0])
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_p": 0.9},
        {"top_k": 50},
        {"top_k": 50, "top_p": 0.9},
        {"top_k": 5000, "top_p": 0.9},
        {"min_p": 0.1},
    ],
    ids=str,
)
def test_many_draws_of_a_large_vocabulary_equal_the_twin(
    filters: dict[str, float], spread: float, device: torch.device
) -> None:
    logits = (torch.randn(256, 128_256, device=device) * spread).bfloat16()
    columns = make_columns(256, temperature=0.9, num_logprobs=8, **filters)  # type: ignore[arg-type]
    columns = to_device(columns, device)
    sampled, expected = sampling.sample(logits, columns), twin.sample(logits, columns)
    assert torch.equal(sampled.tokens, expected.tokens)
    torch.testing.assert_close(sampled.top_logprobs, expected.top_logprobs)
