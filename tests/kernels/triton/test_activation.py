"""Activations equal their twins, whatever the size."""

import pytest
import torch
from torch.nn import functional

from kernels.reference import ReferenceBackend
from kernels.triton.activation import gelu, gelu_mul, relu, silu_mul, softcap
from tests.kernels.triton.precision import DTYPES, assert_near

pytestmark = [
    pytest.mark.usefixtures("poisoned_outputs"),
    # the interpreter computes with numpy, which warns of exp(large), as in a sigmoid near 0
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 2 * 1000), (2, 2 * 1537)])
def test_gates_equal_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    gate_up = torch.randn(shape, device=device).mul(4).to(dtype)
    assert_near(silu_mul(gate_up), ReferenceBackend(device, dtype).silu_mul(gate_up))
    assert_near(gelu_mul(gate_up), ReferenceBackend(device, dtype).gelu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_equals_the_reference_in_place(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(3, 341, device=device).mul(60).to(dtype)
    x[0, 0], x[0, 1] = -torch.inf, 0.0
    expected = ReferenceBackend(device, dtype).softcap(x.clone(), 30.0)
    capped = softcap(x, 30.0)
    assert capped is x
    assert_near(capped, expected)
    assert x.abs().max() <= 30.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 341), (2, 1024)])
def test_relu_and_gelu_equal_torch(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(shape, device=device).mul(3).to(dtype)
    assert torch.equal(relu(x), x.relu())
    assert_near(gelu(x), functional.gelu(x.float(), approximate="tanh").to(dtype))


def test_what_is_no_number_stays_so(device: torch.device) -> None:
    x = torch.full((2, 4), torch.nan, device=device)
    assert relu(x).isnan().all()
    assert gelu(x).isnan().all()
    assert silu_mul(x).isnan().all()


def test_no_rows_are_no_work(device: torch.device) -> None:
    assert silu_mul(torch.empty(0, 8, device=device)).shape == (0, 4)
    assert relu(torch.empty(0, 8, device=device)).shape == (0, 8)
