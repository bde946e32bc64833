import torch

from kernels.cpu.backend import CpuBackend, PackedBackend
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from kernels.select import select_backend, select_runtime, torch_threads


def test_without_compiled_kernels_a_cpu_packs_its_weights() -> None:
    assert type(select_backend("cpu", torch.float32, compiled=False)) is PackedBackend


def test_the_c_kernels_are_for_two_dtypes_only() -> None:
    assert type(select_backend("cpu", torch.float16, compiled=True)) is PackedBackend


def test_without_compiled_kernels_another_device_computes_in_torch() -> None:
    assert type(select_backend("cuda:0", torch.bfloat16, compiled=False)) is ReferenceBackend
    assert type(select_backend("meta", torch.bfloat16, compiled=True)) is ReferenceBackend


def test_work_on_a_cpu_is_run_by_the_host() -> None:
    assert type(select_runtime("cpu", compiled=True)) is HostRuntime


def test_threads_are_those_of_the_kernels_or_of_torch() -> None:
    torch_computes = select_backend("cpu", torch.bfloat16, compiled=False, num_threads=3)
    assert torch_threads(torch_computes, 3) == 3
    # torch has the products of float32
    mixed = select_backend("cpu", torch.float32, compiled=True, num_threads=3)
    assert torch_threads(mixed, 3) == 3
    own = select_backend("cpu", torch.bfloat16, compiled=True, num_threads=3)
    if isinstance(own, CpuBackend) and own.has_threads:
        assert torch_threads(own, 3) == 1
        assert not select_backend("cpu", torch.bfloat16, compiled=True).has_threads  # type: ignore[attr-defined]
