"""Tiles of matrix products: what one program multiplies at a time."""

from dataclasses import dataclass, replace

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True, slots=True)
class Tile:
    """How a program works: on rows of x, rows of the weight, columns at a time."""

    rows: int
    outputs: int
    columns: int
    num_stages: int
    num_warps: int

    def stage_bytes(self, value_bytes: int = 2) -> int:
        """Shared memory of a stage."""
        return (self.rows + self.outputs) * self.columns * value_bytes

    def fitted(self, num_bytes: int, *, has_descriptors: bool, value_bytes: int = 2) -> "Tile":
        """Leave out the stages that so much shared memory does not hold.

        Where the copy engine does not load them, the last needs none of its own.
        """
        num_stages = num_bytes // self.stage_bytes(value_bytes) + (not has_descriptors)
        return replace(self, num_stages=min(self.num_stages, num_stages))


def described(matrix: Tensor, num_rows: int, num_columns: int) -> TensorDescriptor:
    """Describe a contiguous matrix to the copy engine, which moves tiles of such a size."""
    return TensorDescriptor.from_tensor(matrix, [num_rows, num_columns])
