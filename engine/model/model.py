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

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of the layers, each once; 0 among them if a layer attends to all tokens."""
        ...

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run one batch and write its keys and values into the pool.

        Args:
            tokens: [T] int64.
            kv: [num_blocks, layers of a group, 2, num_kv_heads, block_size, head_dim], changed IN
                PLACE; see `KVGroups`.

        Returns:
            [T, hidden_size] hidden states, for `logits`.
        """
        ...

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Hidden states [S, hidden_size] -> [S, num_choices], the same on every rank.

        Args:
            is_deterministic: see `BatchLayout`.
        """
        ...


def run_model(model: Model, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
    """The logits [S, num_choices] of the tokens that a layout selects; see `Model.hidden`."""
    hidden = layout.logit_rows(model.hidden(tokens, kv, layout))
    return model.logits(hidden, is_deterministic=layout.is_deterministic)
