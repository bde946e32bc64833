"""What a worker needs from a model, whatever its architecture."""

from typing import Protocol

from torch import Tensor

from kernels.batch import BatchLayout


class Model(Protocol):
    """One rank's share of a decoder-only transformer."""

    @property
    def num_kv_heads(self) -> int:
        """Key-value heads that this rank holds."""
        ...

    def forward(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run one batch and write its keys and values into the pool.

        Args:
            tokens: [T] int64.
            kv: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim], changed IN PLACE.

        Returns:
            [S, num_choices] logits of the tokens that the layout selects, the same on every rank.
        """
        ...
