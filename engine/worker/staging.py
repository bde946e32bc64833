"""Brings what the host computes to the device."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from engine.integers import div_ceil
from kernels.runtime import Runtime

Int32Array: TypeAlias = NDArray[np.int32]

# Triton compiles a kernel once more for tensors whose address is no multiple of this
ALIGNMENT_BYTES = 16


def stage(runtime: Runtime, *columns: ArrayLike) -> tuple[Tensor, ...]:
    """Bring host integers to the device in one copy, each column as int64."""
    return _stage(runtime, columns, np.int64)


def stage_floats(runtime: Runtime, *columns: ArrayLike) -> tuple[Tensor, ...]:
    """Bring host numbers to the device in one copy, each column as float32."""
    return _stage(runtime, columns, np.float32)


def _stage(
    runtime: Runtime, columns: tuple[ArrayLike, ...], dtype: type[np.int64] | type[np.float32]
) -> tuple[Tensor, ...]:
    arrays = [np.asarray(column) for column in columns]
    unit = ALIGNMENT_BYTES // np.dtype(dtype).itemsize
    sizes = [div_ceil(len(array), unit) * unit for array in arrays]
    joined = np.zeros(sum(sizes), dtype)
    for array, end, size in zip(arrays, np.cumsum(sizes), sizes, strict=True):
        # floats are rounded, integers fit
        np.copyto(joined[end - size :][: len(array)], array, casting="same_kind")
    parts = torch.split(runtime.to_device(torch.from_numpy(joined)), sizes)
    return tuple(part[: len(array)] for part, array in zip(parts, arrays, strict=True))
