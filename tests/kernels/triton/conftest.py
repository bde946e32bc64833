"""Kernels run compiled where there is a GPU, and in Triton's interpreter elsewhere."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from triton.runtime import interpreter

HAS_GPU = torch.cuda.is_available()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


class _ProductsInOrder:
    """numpy, but that each element of a product of matrices is summed in the order of the columns.

    What numpy multiplies with orders the sum by an element's place in the matrix, on some CPUs.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def matmul(a: NDArray[Any], b: NDArray[Any], dtype: Any) -> NDArray[Any]:
        terms = np.multiply(a.T[:, :, None], b[:, None, :], order="C", dtype=dtype)
        summed: NDArray[Any] = np.add.reduce(terms, axis=0)
        return summed


@pytest.fixture
def products_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each row of the interpreter's products the same bits beside any others."""
    if not HAS_GPU:
        monkeypatch.setattr(interpreter, "np", _ProductsInOrder())


@pytest.fixture
def poisoned_outputs() -> Iterator[None]:
    """Fill what `torch.empty` returns with NaN, and integers with a large number."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session", autouse=True)
def _language_patched_once() -> None:
    """Spare Triton's interpreter what took it half of its time.

    At each call of a device function it looks through the whole language for what the launch
    around has already replaced, and at each operation it makes a table of all types anew.
    """
    if not HAS_GPU:
        interpreter._patch_lang = _patched_once(interpreter._patch_lang)
        interpreter._get_np_dtype = _looked_up_once(interpreter._get_np_dtype)


def _patched_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    patched: set[int] = set()

    def patch_in_launch(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return None  # a device function has no use for it
        scope, is_launch = patch(function), not patched
        patched.add(module)
        if is_launch:
            scope.restore = _both(patched.clear, scope.restore)
        return scope

    return patch_in_launch


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


def _looked_up_once(look_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def look_up_once(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = look_up(dtype)
        return known[name]

    return look_up_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="no GPU"))
