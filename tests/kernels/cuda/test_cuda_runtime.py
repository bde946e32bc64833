"""Nothing frees what belongs to the device while a CUDA graph is captured."""

import gc
from collections.abc import Iterator

import pytest
import torch

from kernels.cuda.cuda_runtime import CudaRuntime, garbage_kept


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_kept_and_the_collector_left_as_it_was(*, is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    seen = []

    def fail() -> None:
        seen.append(gc.isenabled())
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"), garbage_kept():
        fail()
    assert seen == [False]
    assert gc.isenabled() is is_enabled


@pytest.mark.gpu
def test_captures_keep_garbage() -> None:
    """The work runs once before, when garbage may still be collected."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    gc.enable()
    seen = []
    counter = torch.zeros(1, device="cuda")

    def count() -> None:
        seen.append(gc.isenabled())
        counter.add_(1)

    runtime = CudaRuntime(torch.device("cuda"), captures=True)
    runtime.capture(count)()
    assert seen == [True, False]
    assert counter.item() == 2
