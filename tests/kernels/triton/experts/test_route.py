"""The router chooses what the twin in torch chooses, and a row the same in every batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from kernels.experts import Routing
from kernels.looped_experts import choose_experts
from kernels.triton.experts import route
from kernels.triton.experts.route import TritonRouter

_ROUTINGS = {
    "softmax": Routing(top_k=3),
    "renormalised": Routing(top_k=2, renormalises=True, scale=2.0),
    "sigmoid": Routing(top_k=4, score="sigmoid", renormalises=True, scale=0.5),
}


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", _ROUTINGS)
@pytest.mark.parametrize("shape", [(5, 40, 3), (24, 300, 19)])
def test_choices_and_weights_equal_the_twin(
    shape: tuple[int, int, int], name: str, has_bias: bool, device: torch.device
) -> None:
    torch.manual_seed(0)
    num_experts, num_columns, num_rows = shape
    routing = _ROUTINGS[name]
    weight = torch.randn(num_experts, num_columns, device=device).half() * num_columns**-0.5
    x = torch.randn(num_rows, num_columns, device=device).half()
    bias = torch.randn(num_experts, device=device).half() if has_bias else None
    choice_bias = torch.randn(num_experts, device=device) if has_bias else None
    router = TritonRouter(weight, bias, choice_bias, routing)
    logits = x.float() @ weight.float().T
    if bias is not None:
        logits += bias.float()
    expected_ids, expected_weights = choose_experts(logits, choice_bias, routing)
    for _ in range(2):  # counters are zero again
        ids, weights = router(x)
        assert torch.equal(ids.long(), expected_ids)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=1e-5)


def test_rows_that_are_not_finite_get_experts_that_exist(device: torch.device) -> None:
    weight = torch.randn(20, 40, device=device).half()
    x = torch.randn(5, 40, device=device).half()
    x[1], x[3, 7] = float("nan"), float("inf")
    for routing in _ROUTINGS.values():
        for bias in (None, torch.randn(20, device=device)):
            ids, _ = TritonRouter(weight, None, bias, routing)(x)
            assert ids.min() >= 0
            assert ids.max() < 20


@pytest.mark.usefixtures("products_in_order")
def test_a_row_has_the_same_bits_in_batches_and_slabs_of_any_size(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 300, device=device).half()
    router = TritonRouter(weight, None, None, Routing(top_k=2))
    route_rows = partial(router, is_deterministic=True)
    x = torch.randn(70, 300, device=device).half()
    ids, weights = route_rows(x)
    monkeypatch.setattr(route, "_SHARED_ROWS", 32)
    assert torch.equal(route_rows(x)[1], weights)
    monkeypatch.setattr(route, "_SLAB_ROWS", 64)
    pieces = zip(route_rows(x[:3]), route_rows(x[3:]), strict=True)
    for again in (route_rows(x), tuple(map(torch.cat, pieces))):
        assert torch.equal(again[0], ids)
        assert torch.equal(again[1], weights)


class _Launches:
    """A kernel that also keeps the constants it is launched with."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.constants: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            self.constants.append(constants)
            self._kernel[grid](*args, **constants)

        return launch


@pytest.mark.usefixtures("products_in_order")
def test_rows_whose_bits_count_take_one_form_of_the_kernel(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one, compiled, adds up in another order, which the interpreter does not show."""
    launches = _Launches(route._route_kernel)
    monkeypatch.setattr(route, "_route_kernel", launches)
    monkeypatch.setattr(route, "_SHARED_ROWS", 32)
    weight = torch.randn(8, 300, device=device).half()
    router = TritonRouter(weight, None, None, Routing(top_k=2))
    for is_deterministic, num_forms in ((True, 1), (False, 2)):
        launches.constants.clear()
        for num_rows in (1, 32, 33):
            x = torch.randn(num_rows, 300, device=device).half()
            router(x, is_deterministic=is_deterministic)
        forms = {tuple(constants.items()) for constants in launches.constants}
        assert len(forms) == num_forms


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_experts", [8, 128, 512])
def test_parts_fit_into_shared_memory(num_experts: int, dtype: torch.dtype) -> None:
    weight = torch.empty(num_experts, 2048, dtype=dtype)
    router = TritonRouter(weight, None, None, Routing(top_k=2))
    # three stages of both operands, which is what the compiler keeps in flight
    rows = router._padded + route._ROWS
    assert 3 * rows * router._part_columns * dtype.itemsize <= 227 << 10
    assert router._num_parts * router._part_columns >= 2048
