"""Sums over ranks that may add a residual and norm the result: what kernels offer the model."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class NormWeights:
    """The parameters of a norm.

    Attributes:
        weight: [width], any float dtype.
        bias: [width] of a layer norm; None makes it a root-mean-square norm.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float


class RowSums(Protocol):
    """Sums rows over all ranks; every rank makes the same calls in the same order.

    The bits of a row are the same on all ranks, and do not depend on the other rows.
    """

    def fits(self, x: Tensor) -> bool:
        """Whether rows are of the type and width that can be summed."""
        ...

    def is_fastest(self, x: Tensor) -> bool:
        """Whether it fits, and no other way of summing x is faster."""
        ...

    def sum_rows(
        self, x: Tensor, residual: Tensor | None = None, norm: NormWeights | None = None
    ) -> Tensor:
        """Sum x [T, width] over the ranks, any T.

        Args:
            residual: [T, width], contiguous, to which the rounded sum is added IN PLACE.
            norm: what is returned is the norm of the residual.

        Returns:
            [T, width]; x itself, overwritten, without residual and norm.
        """
        ...
