"""The one place that asks which device this is."""

import torch

from kernels.backend import KernelBackend
from kernels.cpu.backend import PackedBackend, load_cpu_backend
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime, Runtime


def select_backend(device: str, dtype: torch.dtype, *, compiled: bool) -> KernelBackend:
    """Choose the fastest backend that works here.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        dtype: of weights, activations and the KV pool.
        compiled: whether kernels may be compiled, in C for a CPU and in Triton for CUDA; without
            it everything is torch.
    """
    place = torch.device(device)
    if place.type == "cuda" and compiled:
        # Triton exists only for Linux, and a machine without a GPU has no use for it
        from kernels.triton.backend import TritonBackend

        return TritonBackend(place, dtype)
    if place.type != "cpu":
        return ReferenceBackend(place, dtype)
    if compiled and dtype in (torch.bfloat16, torch.float32):
        return load_cpu_backend(dtype)
    return PackedBackend(dtype)


def select_runtime(device: str, *, compiled: bool) -> Runtime:
    """Choose how work reaches the device; arguments as of `select_backend`."""
    place = torch.device(device)
    if place.type == "cuda":
        from kernels.cuda.cuda_runtime import CudaRuntime

        # the backend in plain torch asks the host about lengths, which no graph can
        return CudaRuntime(place, captures=compiled)
    return HostRuntime()
