"""Prompt and output tokens of the rows whose next token depends on them, on the device.

A token is written at its position when it is fed to the model. So rows that are prefilled again,
and rows that are fed another token than they sampled, need no care of their own.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from engine.types import RowAdmission
from engine.worker.staging import Int32Array, stage
from kernels.runtime import Runtime


class TokenHistory:
    """Tokens [0, length) of each row that needs them; allocated when the first such row comes."""

    def __init__(self, num_rows: int, num_positions: int, runtime: Runtime) -> None:
        self._shape = (num_rows, num_positions)
        self._runtime = runtime
        self._is_kept = np.zeros(num_rows, np.bool_)
        self._tokens: Tensor | None = None

    @property
    def tokens(self) -> Tensor:
        """[num_rows, num_positions] int32; beyond a row's length lies any token id."""
        if self._tokens is None:
            self._tokens = torch.zeros(self._shape, dtype=torch.int32, device=self._runtime.device)
        return self._tokens

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Keep the known tokens of new rows."""
        for admission in admissions:
            self._is_kept[admission.row] = admission.sampling.needs_known_tokens
            if admission.known_tokens:
                known = torch.tensor(admission.known_tokens, dtype=torch.int32)
                self.tokens[admission.row, : len(known)] = self._runtime.to_device(known)

    def fork(self, parents: Int32Array, children: Int32Array) -> None:
        """Give children the tokens of their parents; no child is a parent."""
        if self._is_kept[parents].any():
            to_rows, from_rows = stage(self._runtime, children, parents)
            self.tokens[to_rows] = self.tokens[from_rows]

    def note(
        self, rows: Int32Array, positions: ArrayLike, tokens: Tensor, places: ArrayLike
    ) -> None:
        """Keep the tokens of a batch at their positions.

        Args:
            rows, positions, places: host [N] of each token, its place in `tokens`.
            tokens: [T] int64.
        """
        indices = np.flatnonzero(self._is_kept[rows])
        if len(indices):
            columns = rows, np.asarray(positions), np.asarray(places)
            kept = stage(self._runtime, *(column[indices] for column in columns))
            self.tokens[kept[0], kept[1]] = tokens[kept[2]].int()
