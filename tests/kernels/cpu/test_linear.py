"""Packed linear layers against float64 products."""

import pytest
import torch
from torch import Tensor

from kernels.cpu.library import Library, load_kernels
from kernels.cpu.linear import PackedLinear, make_cpu_linear
from kernels.huge_pages import Arena
from kernels.linears import DenseLinear
from kernels.select import select_backend


@pytest.fixture(params=["tiles", "pairs"])
def library(request: pytest.FixtureRequest) -> Library:
    """The kernels with each way to multiply that this CPU has."""
    loaded = load_kernels(torch.bfloat16)
    if loaded is None or not loaded.has_pairs:
        pytest.skip("no C compiler or no AVX2 here")
    wants_tiles = request.param == "tiles"
    if wants_tiles and not loaded.has_tiles:
        pytest.skip("no AMX here")
    loaded.has_tiles = wants_tiles
    return loaded


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    exact = x.double() @ weight.double().T
    return (exact if bias is None else exact + bias.double()).to(x.dtype)


def random_bfloat16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


@pytest.mark.parametrize(("n", "k"), [(1, 32), (31, 64), (49, 576), (96, 160)])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_weights_compute_the_product(library: Library, n: int, k: int, biased: bool) -> None:
    weight = random_bfloat16(n, k)
    bias = random_bfloat16(n) if biased else None
    narrow = PackedLinear(weight, bias, library, Arena())
    wide = PackedLinear(weight, bias, library, Arena(), out_dtype=torch.float32)
    for num_tokens in (*range(1, 14), 15, 16, 17, 24, 25, 31, 32, 33, 63, 100):
        x = random_bfloat16(num_tokens, k)
        out = narrow(x)
        torch.testing.assert_close(out, product(x, weight, bias), rtol=1e-2, atol=1e-2)
        exact = product(x.float(), weight.float(), None if bias is None else bias.float())
        torch.testing.assert_close(wide(x), exact, rtol=1e-5, atol=1e-4)
        assert torch.equal(wide(x).bfloat16(), out), num_tokens


def test_a_row_of_packed_products_does_not_depend_on_the_batch(library: Library) -> None:
    linear = PackedLinear(random_bfloat16(100, 576), None, library, Arena())
    x = random_bfloat16(100, 576)
    whole = linear(x)
    for count in (1, 7, 12, 13, 16, 17, 32, 33, 64, 99):
        assert torch.equal(linear(x[:count].contiguous()), whole[:count])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 5, 33])
def test_without_kernels_linears_compute_the_product(dtype: torch.dtype, num_tokens: int) -> None:
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((num_tokens, 48), (7, 48), (7,)))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for addend in (bias, None):
        out = make_cpu_linear(weight, addend, None)(x)
        torch.testing.assert_close(out, product(x, weight, addend), rtol=tolerance, atol=tolerance)


def test_what_cannot_be_packed_goes_elsewhere(library: Library) -> None:
    assert isinstance(make_cpu_linear(random_bfloat16(4, 64), None, library), PackedLinear)
    assert not isinstance(make_cpu_linear(random_bfloat16(4, 40), None, library), PackedLinear)
    assert not isinstance(make_cpu_linear(random_bfloat16(4, 64), None, None), PackedLinear)
    assert not isinstance(make_cpu_linear(torch.randn(4, 64), None, library), PackedLinear)
    half = make_cpu_linear(torch.randn(4, 64).half(), None, library)
    assert isinstance(half, DenseLinear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("k", [64, 1536])
def test_deterministic_rows_do_not_depend_on_the_others(
    dtype: torch.dtype, compiled: bool, k: int
) -> None:
    library = load_kernels(dtype) if compiled else None
    weight = torch.randn(70, k).to(dtype)
    layers = (make_cpu_linear(weight, None, library), DenseLinear(weight, None))
    x = torch.randn(64, k).to(dtype)
    for layer in layers:
        single = torch.cat([layer(x[row : row + 1], is_deterministic=True) for row in range(64)])
        torch.testing.assert_close(single, product(x, weight, None), rtol=2e-2, atol=2e-2)
        for num_tokens in (2, 15, 16, 17, 33, 64):
            rows = torch.randperm(64)[:num_tokens]
            assert torch.equal(layer(x[rows], is_deterministic=True), single[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("compiled", [True, False])
def test_logits_are_float32(dtype: torch.dtype, compiled: bool) -> None:
    head = select_backend("cpu", dtype, compiled=compiled)
    x, weight = torch.randn(3, 64).to(dtype), torch.randn(70, 64).to(dtype)
    logits = head.make_head(weight)(x)
    torch.testing.assert_close(logits, x.float() @ weight.float().T, rtol=1e-5, atol=1e-4)
