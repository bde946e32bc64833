import torch

from kernels.cpu.backend import PackedBackend
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from kernels.select import select_backend, select_runtime


def test_without_compiled_kernels_a_cpu_packs_its_weights() -> None:
    assert type(select_backend("cpu", torch.float32, compiled=False)) is PackedBackend


def test_the_c_kernels_are_for_two_dtypes_only() -> None:
    assert type(select_backend("cpu", torch.float16, compiled=True)) is PackedBackend


def test_without_compiled_kernels_another_device_computes_in_torch() -> None:
    assert type(select_backend("cuda:0", torch.bfloat16, compiled=False)) is ReferenceBackend
    assert type(select_backend("meta", torch.bfloat16, compiled=True)) is ReferenceBackend


def test_work_on_a_cpu_is_run_by_the_host() -> None:
    assert type(select_runtime("cpu", compiled=True)) is HostRuntime
