"""Linear layers: cuBLAS."""

from torch import Tensor
from torch.nn import functional

from kernels.reference import in_tiles


class TritonLinear:
    """A weight matrix as it came."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias; see `kernels.backend.Linear`."""
        return in_tiles(self._multiply, x) if is_deterministic else self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)
