"""Brings what the host computes to the device."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from kernels.runtime import Runtime

Int32Array: TypeAlias = NDArray[np.int32]


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
    # floats are rounded, integers fit
    joined = np.concatenate(arrays, dtype=dtype, casting="same_kind")
    return torch.split(runtime.to_device(torch.from_numpy(joined)), [len(a) for a in arrays])
