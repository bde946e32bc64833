"""The tokens that C kernels choose against those of the reference, over poisoned outputs."""

import pytest
import torch

from kernels import sampling
from kernels.cpu.backend import CpuBackend
from kernels.cpu.library import load_kernels
from kernels.cpu.sampling import mask_unlikely
from kernels.reference import ReferenceBackend
from tests.kernels.batches import make_columns, spoiled, take_row

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


@pytest.mark.parametrize("vocab_size", [1, 31, 1000, 50257])
def test_greedy_is_torch_argmax_with_ties_to_the_lowest(
    backend: CpuBackend, vocab_size: int
) -> None:
    logits = torch.randn(4, vocab_size).to(backend.dtype)
    logits[2] = -3.0
    logits[3, : vocab_size // 2] = -torch.inf
    tokens = backend.sample(logits, make_columns(4, temperature=0.0)).tokens
    assert torch.equal(tokens, logits.float().argmax(-1))
    assert tokens[2] == 0


def test_both_zeros_are_equal(backend: CpuBackend) -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0]], dtype=backend.dtype)
    assert backend.sample(logits, make_columns(1, temperature=0.0)).tokens.item() == 1


@pytest.mark.parametrize("top_k", [0, 40])
def test_draws_are_those_of_the_reference(
    backend: CpuBackend, reference: ReferenceBackend, top_k: int
) -> None:
    logits = (2 * torch.randn(300, 5003)).to(backend.dtype)
    columns = make_columns(300, temperature=0.9, top_k=top_k, min_p=0.001)
    tokens = backend.sample(logits, columns).tokens
    # noise differs in its last bits, which may decide between near-equal sums
    assert (tokens == reference.sample(logits, columns).tokens).float().mean() > 0.99


@pytest.mark.parametrize("top_k", [0, 1, 50, 5000])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.3, 1e-9])
@pytest.mark.parametrize("min_p", [0.0, 0.02])
@pytest.mark.parametrize("spread", [0.0, 3.0, 30.0])
def test_filters_keep_the_tokens_that_the_reference_keeps(
    top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    kernels = load_kernels(torch.float32)
    if kernels is None:
        pytest.skip("no C compiler here")
    # rounded to bfloat16 for ties
    scaled = (spread * torch.randn(2, 5000)).bfloat16().float()
    columns = make_columns(2, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = sampling.mask_unlikely(scaled, columns).isfinite()

    mask_unlikely(kernels, scaled, columns)

    # equal but for tokens whose mass before them is top_p to the last bits
    assert (scaled.isfinite() != expected).sum() <= 2
    assert scaled.isfinite().any(dim=1).all()


def test_a_row_draws_the_same_alone_and_in_a_batch(backend: CpuBackend) -> None:
    logits = torch.randn(5, 50257).to(backend.dtype)
    columns = make_columns(5, temperature=[1.0, 0.0, 0.7, 1.3, 1.0], top_k=[0, 0, 3, 0, 5])
    together = backend.sample(logits, columns).tokens
    for row in range(5):
        single = backend.sample(logits[row : row + 1], take_row(columns, row)).tokens
        assert single[0] == together[row]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_flags_make_pointless_is_not_read(backend: CpuBackend, temperature: float) -> None:
    logits = torch.randn(30, 300).to(backend.dtype)
    columns = make_columns(30, temperature=temperature)
    tokens = backend.sample(logits, spoiled(columns)).tokens
    assert torch.equal(tokens, backend.sample(logits, columns).tokens)


def test_masked_tokens_are_never_drawn(backend: CpuBackend) -> None:
    logits = torch.full((500, 40), -torch.inf, dtype=backend.dtype)
    logits[:, [3, 17]] = 0.0
    tokens = backend.sample(logits, make_columns(500, temperature=2.0)).tokens
    assert set(tokens.tolist()) == {3, 17}


@pytest.mark.parametrize("broken", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("at", [slice(0, 1), slice(499, 500), slice(None)])
@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {}, {"top_p": 0.9}])
def test_a_row_of_broken_logits_gets_no_token(
    backend: CpuBackend, broken: float, at: slice, filters: dict[str, float]
) -> None:
    logits = torch.randn(3, 500).to(backend.dtype)
    logits[1, at] = broken
    columns = make_columns(3, **filters, num_logprobs=1)  # type: ignore[arg-type]
    for own in (backend, ReferenceBackend(backend.device, backend.dtype)):
        tokens = own.sample(logits, columns).tokens
        assert tokens[1] == -1
        for row in (0, 2):
            single = own.sample(logits[row : row + 1], take_row(columns, row)).tokens
            assert single[0] == tokens[row] >= 0


@pytest.mark.parametrize("filters", [{"temperature": 0.0}, {}, {"top_p": 0.9}])
def test_what_is_ruled_out_does_not_break_a_row(
    backend: CpuBackend, filters: dict[str, float]
) -> None:
    logits = torch.full((2, 500), -torch.inf, dtype=backend.dtype)
    logits[0, 321] = -7.0
    columns = make_columns(2, **filters)  # type: ignore[arg-type]
    for own in (backend, ReferenceBackend(backend.device, backend.dtype)):
        assert own.sample(logits, columns).tokens.tolist() == [321, -1]
