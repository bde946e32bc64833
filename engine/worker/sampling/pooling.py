"""Makes one vector of the hidden states of a prompt, chunk by chunk."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.worker.batch import HostBatch
from engine.worker.report import PendingStep
from engine.worker.row_table import RowParameters


class Pooler:
    """Keeps, for each row whose hidden states are averaged, the sum of those so far.

    A row that was given up half-way leaves its sum until the row pools again: at most one vector
    for each row.
    """

    def __init__(self, parameters: RowParameters) -> None:
        self._parameters = parameters
        self._sums: dict[int, Tensor] = {}

    def pool(
        self, batch: HostBatch, hidden: Tensor, places: NDArray[np.int64], pending: PendingStep
    ) -> None:
        """Take in the hidden states of a step, and add the vectors of prompts that end to it.

        Args:
            hidden: [T, hidden_size], and host [N] where those of the batch are in it.
        """
        if not self._parameters.is_pooled[batch.spans.rows].any():
            return
        self._add_chunks(batch, hidden, places)
        sampled = batch.sampled
        items = np.flatnonzero(self._parameters.is_pooled[sampled.rows]).astype(np.int32)
        if len(items):
            ends = zip(sampled.rows[items], places[sampled.indices[items]], strict=True)
            lengths = sampled.positions[items]
            vectors = [
                self._sums.pop(int(row)) / int(length)
                if self._parameters.is_averaged[row]
                else hidden[int(end)].float()
                for (row, end), length in zip(ends, lengths, strict=True)
            ]
            pending.add_pooled(items, torch.stack(vectors))

    def _add_chunks(self, batch: HostBatch, hidden: Tensor, places: NDArray[np.int64]) -> None:
        spans = batch.spans
        for index in np.flatnonzero(self._parameters.is_averaged[spans.rows]):
            row, first = int(spans.rows[index]), int(places[spans.bounds[index]])
            # the tokens of a chunk lie side by side
            total = hidden[first : first + int(spans.counts[index])].float().sum(0)
            if spans.starts[index]:
                total += self._sums[row]
            self._sums[row] = total
