"""Products equal torch's, and a row's bits depend neither on its batch nor on the tile."""

import pytest
import torch

from kernels.triton.linear import StreamedProduct, Tile, TritonLinear
from tests.kernels.triton.precision import assert_near

SMALL_TILE = Tile(rows=16, outputs=32, columns=32, num_stages=2, num_warps=4)
WIDE_TILE = Tile(rows=32, outputs=64, columns=64, num_stages=2, num_warps=4)


def make(
    num_outputs: int, num_columns: int, num_rows: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weight = torch.randn(num_outputs, num_columns, device=device).half() * num_columns**-0.5
    bias = torch.randn(num_outputs, device=device).half()
    return weight, bias, torch.randn(num_rows, num_columns, device=device).half()


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x.float() @ weight.float().T + bias.float()).half()


@pytest.mark.parametrize("shape", [(1, 8, 1), (50, 100, 3), (64, 576, 17), (130, 1024, 40)])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_products_equal_torch(
    shape: tuple[int, int, int],
    num_parts: int,
    device: torch.device,
    poisoned_outputs: None,
) -> None:
    weight, bias, x = make(*shape, device)
    product = StreamedProduct(weight, bias, num_parts)
    for tile in (SMALL_TILE, WIDE_TILE):
        # twice, since the counters of the first launch serve the second one
        assert_near(product(x, tile), expected(x, weight, bias))
        assert_near(product(x, tile), expected(x, weight, bias))


def test_products_without_bias_and_without_rows(device: torch.device) -> None:
    weight, bias, x = make(40, 64, 5, device)
    assert_near(StreamedProduct(weight, None)(x), expected(x, weight, torch.zeros_like(bias)))
    assert StreamedProduct(weight, bias)(x[:0]).shape == (0, 40)


def test_few_rows_and_deterministic_ones_are_right(device: torch.device) -> None:
    weight, bias, x = make(40, 320, 21, device)
    linear = TritonLinear(weight, bias)
    assert_near(linear(x[:5]), expected(x[:5], weight, bias))
    assert_near(linear(x), expected(x, weight, bias))
    alone = linear(x[20:], is_deterministic=True)
    assert torch.equal(linear(x, is_deterministic=True)[20:], alone)


def test_float32_is_exact_to_float32(device: torch.device) -> None:
    weight, x = torch.randn(40, 320, device=device), torch.randn(21, 320, device=device)
    linear = TritonLinear(weight, None)
    for is_deterministic in (False, True):
        assert_near(linear(x, is_deterministic=is_deterministic) / 20, x @ weight.T / 20)


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
