"""Norms equal their twins at odd widths, and a row's bits do not depend on its batch."""

import pytest
import torch

from kernels.reference import ReferenceBackend
from kernels.triton.norm import add_layer_norm, add_rms_norm, layer_norm, mean_squares, rms_norm
from tests.kernels.triton.precision import DTYPES, assert_near

pytestmark = pytest.mark.usefixtures("poisoned_outputs")
SHAPES = [(1, 1), (3, 50), (5, 576), (2, 1025)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norms_equal_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    reference = ReferenceBackend(device, dtype)
    x, residual = torch.randn(2, *shape, device=device).mul(3).to(dtype)
    weight = torch.randn(shape[1], device=device).to(dtype)
    assert_near(rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))

    expected_sum = residual.clone()
    expected = reference.add_rms_norm(x, expected_sum, weight, 1e-5)
    assert_near(add_rms_norm(x, residual, weight, 1e-5), expected)
    assert torch.equal(residual, expected_sum)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norms_equal_torch(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, residual = torch.randn(2, *shape, device=device).add(2).to(dtype)
    weight, bias = torch.randn(2, shape[1], device=device).to(dtype)

    def expected(values: torch.Tensor) -> torch.Tensor:
        wide = values.float(), shape[1:], weight.float(), bias.float(), 1e-5
        return torch.nn.functional.layer_norm(*wide).to(dtype)

    assert_near(layer_norm(x, weight, bias, 1e-5), expected(x))
    total = x + residual
    assert_near(add_layer_norm(x, residual, weight, bias, 1e-5), expected(total))
    assert torch.equal(residual, total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("first", "second"), [(1, 1), (576, 64), (100, 700)])
def test_mean_squares_equal_the_reference(
    first: int, second: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(3, first + 2 * second, device=device).to(dtype)
    expected = ReferenceBackend(device, dtype).mean_squares(x, first, second)
    torch.testing.assert_close(mean_squares(x, first, second), expected, rtol=1e-5, atol=0)
    assert torch.equal(mean_squares(x[:1], first, second), mean_squares(x, first, second)[:1])


def test_gains_may_be_wider_than_the_rows(device: torch.device) -> None:
    x = torch.randn(3, 50, device=device).half()
    weight = 1.0 + torch.randn(50, device=device) * 1e-4
    expected = ReferenceBackend(device, torch.float16).rms_norm(x, weight, 1e-5)
    assert_near(rms_norm(x, weight, 1e-5), expected)


def test_rows_may_lie_apart_and_do_not_depend_on_their_batch(device: torch.device) -> None:
    wide = torch.randn(4, 200, device=device)
    weight = torch.randn(100, device=device)
    together = rms_norm(wide[:, 100:], weight, 1e-5)
    for row in range(4):
        single = rms_norm(wide[row : row + 1, 100:].contiguous(), weight, 1e-5)
        assert torch.equal(single[0], together[row])


def test_a_row_that_does_not_fit_is_refused(device: torch.device) -> None:
    x = torch.zeros(1, 16385, device=device)
    with pytest.raises(AssertionError, match="does not fit"):
        rms_norm(x, x[0], 1e-5)


def test_no_rows_are_no_work(device: torch.device) -> None:
    empty = torch.empty(0, 8, device=device)
    assert rms_norm(empty, torch.ones(8, device=device), 1e-5).shape == (0, 8)
