"""The CPU backend and its reference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.cpu.backend import CpuBackend, load_cpu_backend
from kernels.cpu.library import load_kernels
from kernels.reference import ReferenceBackend

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["float32", "bfloat16", "portable"])
def backend(request: pytest.FixtureRequest) -> CpuBackend:
    dtype = torch.float32 if request.param == "float32" else torch.bfloat16
    loaded = load_cpu_backend(dtype)
    if not isinstance(loaded, CpuBackend):
        pytest.skip("no C compiler here")
    if request.param == "portable":
        kernels = {element: load_kernels(element, portable=True) for element in DTYPES}
        return CpuBackend(dtype, {element: lib for element, lib in kernels.items() if lib})
    return loaded


@pytest.fixture
def reference(backend: CpuBackend) -> ReferenceBackend:
    return ReferenceBackend(torch.device("cpu"), backend.dtype)


@pytest.fixture
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every new float tensor with NaN, so that an element left unwritten shows."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "empty", _poison(torch.empty))
    monkeypatch.setattr(torch, "empty_like", _poison(torch.empty_like))


def _poison(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def allocate_poisoned(*args: object, **kwargs: object) -> Tensor:
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.fill_(-1)

    return allocate_poisoned
