"""Layers equal torch's products, and a row's bits depend on its batch only where they may."""

import pytest
import torch

from kernels.triton.linear.triton_linear import TritonLinear
from tests.kernels.triton.linear.test_streamed_product import expected, make
from tests.kernels.triton.precision import assert_near


def test_few_rows_and_deterministic_ones_are_right(device: torch.device) -> None:
    weight, bias, x = make(40, 320, 21, device)
    linear = TritonLinear(weight, bias)
    assert_near(linear(x[:5]), expected(x[:5], weight, bias))
    assert_near(linear(x), expected(x, weight, bias))
    single = linear(x[20:], is_deterministic=True)
    assert torch.equal(linear(x, is_deterministic=True)[20:], single)


def test_float32_is_exact_to_float32(device: torch.device) -> None:
    weight, x = torch.randn(40, 320, device=device), torch.randn(21, 320, device=device)
    linear = TritonLinear(weight, None)
    for is_deterministic in (False, True):
        assert_near(linear(x, is_deterministic=is_deterministic) / 20, x @ weight.T / 20)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [33, 64, 128, 129])
def test_long_sums_take_another_library_and_leave_the_setting_as_it_was(
    num_rows: int, device: torch.device
) -> None:
    weight, bias, x = make(4096, 14336, num_rows, device)
    before = torch.backends.cuda.preferred_blas_library()
    assert_near(TritonLinear(weight, None)(x), expected(x, weight, torch.zeros_like(bias)))
    assert torch.backends.cuda.preferred_blas_library() == before


@pytest.mark.usefixtures("products_in_order")
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "shape",
    [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (5120, 20480), (50257, 768)],
    ids=str,
)
def test_a_row_has_the_same_bits_in_every_batch(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    weight = torch.randn(shape, device=device).mul(shape[1] ** -0.5).to(dtype)
    bias = torch.randn(shape[0], device=device).to(dtype)
    x = torch.randn(2500, shape[1], device=device).to(dtype)
    linear = TritonLinear(weight, bias)
    whole = linear(x, is_deterministic=True)
    torch.testing.assert_close(whole, linear(x), rtol=2e-2, atol=2e-2)
    for num_rows in (1, 2, 16, 17, 64, 65, 100, 128, 200, 256, 300, 1000):
        part = linear(x[:num_rows], is_deterministic=True)
        assert torch.equal(part, whole[:num_rows]), num_rows
    assert torch.equal(linear(x[2400:2401].clone(), is_deterministic=True), whole[2400:2401])
