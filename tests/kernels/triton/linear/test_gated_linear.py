"""Gated products equal those of the reference, from one kernel and from two."""

import pytest
import torch

from kernels.backend import Activation
from kernels.reference import ReferenceBackend
from kernels.triton.linear.gated_linear import TritonGatedLinear, gated_product
from kernels.triton.linear.tiles import Tile
from tests.kernels.triton.precision import assert_near

TILE = Tile(rows=16, outputs=32, columns=32, num_stages=2, num_warps=4)


def make(
    num_outputs: int, num_columns: int, num_rows: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randn(2 * num_outputs, num_columns, device=device) * num_columns**-0.5
    return weight.half(), torch.randn(num_rows, num_columns, device=device).half()


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate_up = (x.float() @ weight.float().T).half()
    return ReferenceBackend(x.device, x.dtype).silu_mul(gate_up)


@pytest.mark.parametrize("shape", [(1, 8, 1), (50, 104, 3), (64, 576, 17), (130, 256, 40)])
def test_products_equal_the_reference(
    shape: tuple[int, int, int], device: torch.device, poisoned_outputs: None
) -> None:
    weight, x = make(*shape, device)
    assert_near(gated_product(x, weight, TILE), expected(x, weight))


def test_a_batch_may_be_empty(device: torch.device) -> None:
    weight, x = make(40, 64, 0, device)
    assert gated_product(x, weight, TILE).shape == (0, 40)
    assert TritonGatedLinear(weight)(x).shape == (0, 40)


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_small_layers_equal_the_reference(is_deterministic: bool, device: torch.device) -> None:
    weight, x = make(40, 64, 5, device)
    layer = TritonGatedLinear(weight)
    assert_near(layer(x, is_deterministic=is_deterministic), expected(x, weight))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_layers_may_have_a_bias_and_another_gate(
    activation: Activation, device: torch.device
) -> None:
    weight, x = make(40, 64, 5, device)
    bias = torch.randn(80, device=device).to(weight.dtype)
    twin = ReferenceBackend(device, weight.dtype).make_gated_linear(weight, bias, activation)
    assert_near(TritonGatedLinear(weight, bias, activation)(x), twin(x))


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 16, 17, 64, 65, 128, 129])
def test_large_layers_equal_the_reference(num_rows: int, device: torch.device) -> None:
    weight, x = make(14336, 4096, num_rows, device)
    layer = TritonGatedLinear(weight)
    # sums of 4096 terms in another order may round to the next number before they are multiplied
    torch.testing.assert_close(layer(x), expected(x, weight), rtol=4e-3, atol=4e-3)
    assert torch.equal(layer(x, is_deterministic=True)[:1], layer(x[:1], is_deterministic=True))
