"""Kernels run compiled where there is a GPU, and in Triton's interpreter elsewhere."""

from collections.abc import Iterator

import pytest
import torch

HAS_GPU = torch.cuda.is_available()


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
