"""Kernels run compiled where there is a GPU, and in Triton's interpreter elsewhere."""

from collections.abc import Iterator
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="no GPU"))
