"""The one place that asks which device this is."""

import torch

from kernels.backend import KernelBackend
from kernels.reference import ReferenceBackend


def select_backend(device: str, dtype: torch.dtype, *, compiled: bool) -> KernelBackend:
    """Choose the fastest backend that works here.

    Args:
        device: "cpu", "cuda" or "cuda:N".
        dtype: of weights, activations and the KV pool.
        compiled: whether kernels may be compiled; without it everything is plain torch.
    """
    return ReferenceBackend(torch.device(device), dtype)
