"""Kernels run compiled where there is a GPU, and in Triton's interpreter elsewhere."""

import os
from collections.abc import Iterator

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # read when a kernel is defined, and the tests of this folder import kernels after this file
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


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
