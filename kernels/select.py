"""The one place that asks which device this is."""

import torch

from kernels.backend import KernelBackend
from kernels.cpu.backend import CpuBackend, PackedBackend, load_cpu_backend
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime, Runtime


def select_backend(
    device: str, dtype: torch.dtype, *, compiled: bool, num_threads: int = 1
) -> KernelBackend:
    """Choose the fastest backend that works here.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        dtype: of weights, activations and the KV pool.
        compiled: whether kernels may be compiled, in C for a CPU and in Triton for CUDA; without
            it everything is torch.
        num_threads: that compute on a CPU.
    """
    place = torch.device(device)
    if place.type == "cuda" and compiled:
        # Triton exists only for Linux, and a machine without a GPU has no use for it
        from kernels.triton.backend import TritonBackend

        return TritonBackend(place, dtype)
    if place.type != "cpu":
        return ReferenceBackend(place, dtype)
    if compiled and dtype in (torch.bfloat16, torch.float32):
        return load_cpu_backend(dtype, num_threads=num_threads)
    return PackedBackend(dtype)


def torch_threads(backend: KernelBackend, num_threads: int) -> int:
    """How many threads torch gets: one beside kernels that have theirs.

    Those of torch wait awake for milliseconds, on the cores that the others need.
    """
    return 1 if isinstance(backend, CpuBackend) and backend.has_threads else num_threads


def select_runtime(device: str, *, compiled: bool) -> Runtime:
    """Choose how work reaches the device; arguments as of `select_backend`."""
    place = torch.device(device)
    if place.type == "cuda":
        from kernels.cuda.cuda_runtime import CudaRuntime

        # the backend in plain torch asks the host about lengths, which no graph can
        return CudaRuntime(place, captures=compiled)
    return HostRuntime()
