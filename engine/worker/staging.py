"""Brings what the host computes to the device."""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Int32Array: TypeAlias = NDArray[np.int32]


def stage(device: torch.device, *columns: ArrayLike) -> tuple[Tensor, ...]:
    """Bring host integers to the device in one copy, each column as int64."""
    arrays = [np.asarray(column) for column in columns]
    staged = torch.from_numpy(np.concatenate(arrays, dtype=np.int64)).to(device)
    return torch.split(staged, [len(array) for array in arrays])
