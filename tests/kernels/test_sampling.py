"""Sampling: the right distribution, exact filters, and draws that depend only on their own row."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.batch import SMALLEST_TEMPERATURE, Sampled, SamplingColumns
from kernels.cpu.backend import CpuBackend, load_cpu_backend
from kernels.cpu.library import load_kernels
from kernels.sampling import draw_keys, gumbel_noise, mask_unlikely, most_likely, sample
from kernels.triton.sampling import sample as triton_sampling
from tests.kernels.batches import make_columns, spoiled, take_row

Sample = Callable[[Tensor, SamplingColumns], Sampled]

# critical values of chi-square at p = 1e-4
CHI_SQUARE_4 = 23.5


def chi_square(tokens: torch.Tensor, probs: torch.Tensor) -> float:
    expected = probs * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probs)).float()
    return float(((counts - expected) ** 2 / expected).sum())


def test_draws_follow_the_softmax_over_seeds_and_over_positions() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    num_draws = 20_000
    columns = make_columns(num_draws, temperature=0.8)
    by_seed = sample(logits.expand(num_draws, -1), columns).tokens
    columns.seeds.fill_(7)
    columns.positions.copy_(torch.arange(num_draws))
    by_position = sample(logits.expand(num_draws, -1), columns).tokens

    probs = (logits / 0.8).softmax(0)
    assert chi_square(by_seed, probs) < CHI_SQUARE_4
    assert chi_square(by_position, probs) < CHI_SQUARE_4
    assert not torch.equal(by_seed, by_position)


def test_noise_is_standard_gumbel_with_a_long_tail() -> None:
    noise = gumbel_noise(torch.arange(64), torch.arange(64), 50257)
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772) < 0.003
    assert abs(float(noise.var()) - 1.6449) < 0.01
    # the largest of 3.2 million standard Gumbel values exceeds 13 but for e**-7
    assert float(noise.max()) > 13


def test_keys_differ_for_every_seed_and_position() -> None:
    seeds = torch.arange(-40, 40).repeat_interleave(80)
    seeds = torch.cat((seeds, seeds << 33))
    keys = torch.stack(draw_keys(seeds, torch.arange(80).repeat(160)))
    # seed 0 is in both halves
    assert len(set(map(tuple, keys.T.tolist()))) == 80 * 159


@pytest.mark.parametrize("vocab_size", [7, 1000, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_draws_the_same_alone_and_in_a_batch(vocab_size: int, dtype: torch.dtype) -> None:
    logits = torch.randn(5, vocab_size).to(dtype)
    columns = make_columns(
        5, temperature=[1.0, 0.0, 0.7, 1.3, 1.0], top_k=[0, 0, 3, 0, 5], num_logprobs=3
    )
    together = sample(logits, columns)
    noise = gumbel_noise(columns.seeds, columns.positions, vocab_size)
    for row in range(5):
        single = sample(logits[row : row + 1], take_row(columns, row))
        assert single.tokens[0] == together.tokens[row]
        assert single.logprobs is not None
        assert together.logprobs is not None
        assert torch.equal(single.logprobs[0], together.logprobs[row])
        own = gumbel_noise(
            columns.seeds[row : row + 1], columns.positions[row : row + 1], vocab_size
        )
        assert torch.equal(own[0], noise[row])


def test_greedy_rows_take_the_lowest_of_equal_maxima() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.0, 9.0]])
    assert sample(logits, make_columns(3, temperature=0.0)).tokens.tolist() == [1, 0, 2]
    mixed = make_columns(3, temperature=[0.0, 0.0, 1.0])
    assert sample(logits, mixed).tokens.tolist()[:2] == [1, 0]


@pytest.mark.parametrize("count", [1, 3, 17])
@pytest.mark.parametrize("vocab_size", [17, 1024, 5000, 20480])
def test_equal_scores_are_ranked_by_token(vocab_size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    # of few different values, two of them zeros
    scores = torch.randint(-3, 3, (4, vocab_size), generator=generator) * 0.5
    scores[1], scores[2, 1:] = -torch.inf, -0.0
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(most_likely(scores, count), expected)


def sample_of(backend: str) -> Sample:
    """How a backend samples; on the device that its kernels need."""
    if backend == "torch":
        return sample
    if backend == "triton":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return lambda logits, columns: triton_sampling.sample(
            logits.to(device), replace(columns, **on_device(columns, device))
        )
    loaded = load_cpu_backend(torch.float32)
    portable = load_kernels(torch.float32, portable=True)
    if not isinstance(loaded, CpuBackend) or portable is None:
        pytest.skip("no C compiler here")
    if backend == "portable C":
        loaded = CpuBackend(torch.float32, {torch.float32: portable})
    return loaded.sample


def on_device(columns: SamplingColumns, device: torch.device) -> dict[str, Any]:
    values = {field.name: getattr(columns, field.name) for field in fields(columns)}
    return {name: v.to(device) for name, v in values.items() if isinstance(v, Tensor)}


@pytest.mark.in_turn
# the interpreter of Triton computes with numpy, which warns of what is meant: inf - inf
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", ["torch", "C", "portable C", "triton"])
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_p": 5e-324}], ids=str
)
# what a repetition penalty of 0.001 makes of logits, and what it leaves
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e20])
def test_tiny_temperatures_are_greedy_on_every_backend(
    backend: str, filters: dict[str, Any], scale: float
) -> None:
    temperatures = [5e-324, 1e-45, 1e-38, 7e-38, 1e-37, 1e-30, 0.9 * SMALLEST_TEMPERATURE]
    temperatures += [1.1 * SMALLEST_TEMPERATURE, 0.0]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(temperatures), 2500, generator=generator) * 10 * scale
    logits -= torch.tensor([100.0, 0.0, 0.0] * 3)[:, None] * scale
    columns = make_columns(len(temperatures), temperature=temperatures, **filters)
    tokens = sample_of(backend)(logits, columns).tokens
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


def kept(scaled: list[float], **filters: float) -> list[int]:
    columns = make_columns(1, **filters)  # type: ignore[arg-type]
    return mask_unlikely(torch.tensor([scaled]), columns)[0].isfinite().nonzero()[:, 0].tolist()


def test_top_k_keeps_exactly_k_and_ranks_ties_by_id() -> None:
    assert kept([1.0, 5.0, 3.0, 5.0, 3.0], top_k=3) == [1, 2, 3]
    assert kept([2.0, 2.0, 2.0], top_k=2) == [0, 1]
    assert kept([2.0, 1.0, 0.0], top_k=9) == [0, 1, 2]


def test_top_p_keeps_the_fewest_tokens_that_reach_p() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().tolist()
    assert kept(logits, top_p=0.39) == [1]
    assert kept(logits, top_p=0.69) == [1, 3]
    assert kept(logits, top_p=0.71) == [1, 2, 3]
    assert kept(logits, top_p=1.0) == [0, 1, 2, 3]
    assert kept(logits, top_p=1e-9) == [1]


def test_min_p_keeps_a_share_of_the_largest() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().tolist()
    assert kept(logits, min_p=0.49) == [1, 2, 3]
    assert kept(logits, min_p=0.76) == [1]
    assert kept(logits, min_p=1.0) == [1]


def test_top_p_counts_the_mass_among_the_top_k() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().tolist()
    # among the top two, token 1 holds 0.4 / 0.7
    assert kept(logits, top_k=2, top_p=0.56) == [1]
    assert kept(logits, top_k=2, top_p=0.58) == [1, 3]


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.randn(4, 300) * 3
    chosen = sample(logits, make_columns(4, temperature=0.5, top_k=2, num_logprobs=5))
    expected = torch.log_softmax(logits, dim=-1)
    assert chosen.logprobs is not None
    assert chosen.top_tokens is not None
    torch.testing.assert_close(chosen.logprobs, expected.gather(1, chosen.tokens[:, None])[:, 0])
    assert chosen.top_tokens.tolist() == expected.topk(5).indices.tolist()
    torch.testing.assert_close(chosen.top_logprobs, expected.topk(5).values)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_flags_make_pointless_is_not_read(temperature: float) -> None:
    logits = torch.randn(30, 300)
    columns = make_columns(30, temperature=temperature)
    assert torch.equal(sample(logits, spoiled(columns)).tokens, sample(logits, columns).tokens)


def test_no_logprobs_unless_a_row_wants_them() -> None:
    logits = torch.randn(2, 9)
    none = sample(logits, make_columns(2))
    assert (none.logprobs, none.top_tokens, none.top_logprobs) == (None, None, None)
    chosen_only = sample(logits, make_columns(2, num_logprobs=0))
    assert chosen_only.logprobs is not None
    assert chosen_only.top_tokens is None


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_p": 0.9, "num_logprobs": 2}])
def test_logits_that_are_no_numbers_give_no_token(settings: dict[str, Any]) -> None:
    sound = [0.0, 9.0, -torch.inf]
    broken = [[torch.nan, 9.0, 0.0], [torch.inf, 9.0, 0.0], [-torch.inf] * 3]
    logits = torch.tensor([sound, broken[0], sound, broken[1], broken[2], sound])
    tokens = sample(logits, make_columns(6, **({"temperature": 0.1} | settings))).tokens
    assert tokens.tolist() == [1, -1, 1, -1, -1, 1]
