"""Products equal torch's, whatever the tile and the parts of the sums."""

import pytest
import torch

from kernels.triton.linear.streamed_product import StreamedProduct
from kernels.triton.linear.tiles import Tile
from tests.kernels.triton.precision import assert_near

SMALL_TILE = Tile(rows=16, outputs=32, columns=32, num_stages=2, num_warps=4)
WIDE_TILE = Tile(rows=32, outputs=64, columns=64, num_stages=2, num_warps=4)


def test_a_tile_takes_the_shared_memory_that_there_is() -> None:
    deep = Tile(rows=32, outputs=64, columns=256, num_stages=4, num_warps=4)
    hopper, ampere, ada = (size << 10 for size in (227, 163, 99))
    assert deep.fitted(hopper, has_descriptors=True) == deep
    assert deep.fitted(ampere, has_descriptors=False) == deep
    assert deep.fitted(ada, has_descriptors=False).num_stages == 3
    assert SMALL_TILE.fitted(ada, has_descriptors=False) == SMALL_TILE


def make(
    num_outputs: int, num_columns: int, num_rows: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    weight = torch.randn(num_outputs, num_columns, device=device).half() * num_columns**-0.5
    bias = torch.randn(num_outputs, device=device).half()
    return weight, bias, torch.randn(num_rows, num_columns, device=device).half()


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (x.float() @ weight.float().T + bias.float()).half()


@pytest.mark.in_turn
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
