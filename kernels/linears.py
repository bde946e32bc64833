"""Linear layers in plain torch."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels.backend import Linear

# a library chooses its algorithm by the number of rows; with this one it is always the same
_TILE_ROWS = 16


def in_tiles(multiply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply `multiply` to x [T, n] in tiles of so many rows, the last one filled up with zeros."""
    padded = functional.pad(x, (0, 0, 0, -len(x) % _TILE_ROWS))
    tiles = torch.split(padded, _TILE_ROWS)
    return torch.cat([multiply(tile) for tile in tiles])[: len(x)]


class DenseLinear:
    """A linear layer that keeps its weight as it came."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        return in_tiles(self._multiply, x) if is_deterministic else self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class WideLinear:
    """A linear layer in float32 for inputs of a narrower dtype."""

    def __init__(self, linear: Linear) -> None:
        """Args: linear: of a float32 weight."""
        self._linear = linear

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        return self._linear(x.float(), is_deterministic=is_deterministic)


class GatedLinear:
    """A linear layer whose first half of outputs gates the second one."""

    def __init__(self, linear: Linear, gate: Callable[[Tensor], Tensor]) -> None:
        self._linear = linear
        self._gate = gate

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute silu(x @ gate.T) * (x @ up.T); see `kernels.backend.Linear`."""
        return self._gate(self._linear(x, is_deterministic=is_deterministic))
