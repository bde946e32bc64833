"""Choices behind the hidden states of ruled graphs, captured, where all rules are masks.

The host makes the masks while the device feeds the batch, so a step with such rules is two graphs:
one up to the hidden states, and behind it, once the masks are there, one that chooses.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from engine.integers import div_ceil
from engine.worker.batch import HostBatch
from engine.worker.graphs.graph_batch import GraphShape, unpack
from engine.worker.row_table import RowTable
from engine.worker.sampling.sampler import RowMasks
from engine.worker.sampling.token_masks import WORD_BITS
from engine.worker.staging import ALIGNMENT_BYTES
from kernels.batch import Sampled, SamplingColumns

# what follows hidden states [S, hidden_size], of what masks [N, ceil(vocab_size / 32)] leave
ChooseMasked: TypeAlias = Callable[[Tensor, SamplingColumns, Tensor, Tensor], Sampled]


class MaskedChoices:
    """All such graphs.

    Attributes:
        hidden: [T, hidden_size] what the graph of a ruled shape has left, by shape.
    """

    def __init__(
        self, table: RowTable, choose: ChooseMasked, batches: Tensor, max_num_rows: int
    ) -> None:
        """Capture nothing yet.

        Args:
            batches: the buffer that all graphs read their batch from.
            max_num_rows: that a batch samples, padding included.
        """
        self._table = table
        self._choose = choose
        self._batches = batches
        self.hidden: dict[GraphShape, Tensor] = {}
        self._graphs: dict[tuple[GraphShape, bool], Callable[[], Sampled]] = {}
        # the place of each row's mask, then all masks, aligned: filled by one copy
        unit = ALIGNMENT_BYTES // torch.int32.itemsize
        num_words = div_ceil(table.vocab_size, WORD_BITS)
        self._start = div_ceil(max_num_rows, unit) * unit
        size = self._start + max_num_rows * num_words
        device = table.runtime.device
        self._buffer = torch.full((size,), -1, dtype=torch.int32, device=device)
        self._masks = self._buffer[self._start :].view(max_num_rows, num_words)
        self._outbox = table.runtime.outbox(self._buffer)
        self._host = self._outbox.host.numpy()

    def capture(self, shape: GraphShape) -> None:
        """Capture what chooses behind a ruled shape that has been captured."""
        # batches with prompts can always draw, as in `mixed_shapes`
        for is_random in (True,) if shape.num_prompt_tokens else (True, False):
            work = partial(self._forward, shape, is_random)
            self._graphs[shape, is_random] = self._table.runtime.capture(work)

    def choose(
        self, shape: GraphShape, batch: HostBatch, asked: RowMasks, begun: Callable[[], None]
    ) -> Sampled:
        """Find out what masks allow, and enqueue the choice behind a graph that was replayed.

        Args:
            begun: see `NextMasks.write`.

        Returns:
            Tokens in the order of the shape's rows, padding included, valid until the next replay.
        """
        self._outbox.wait()
        num_decodes, places = batch.num_decodes, asked.places
        sent = self._host[: self._start]
        sent[:] = -1
        sent[:num_decodes] = places[:num_decodes]
        sent[shape.num_decodes :][: len(places) - num_decodes] = places[num_decodes:]
        masks = self._host[self._start :].reshape(self._masks.shape)[: len(asked)]
        asked.write(masks, begun)
        self._outbox.send(self._start + masks.size)
        is_random = self._table.parameters.is_random[batch.sampled.rows].any()
        chosen = self._graphs[shape, bool(is_random) or shape.num_prompt_tokens > 0]()
        self._outbox.taken()
        return chosen

    def close(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        self.hidden.clear()

    def _forward(self, shape: GraphShape, is_random: bool) -> Sampled:
        """Choose, and keep the choice as last tokens."""
        table = self._table
        batch, _, _ = unpack(shape, self._batches)
        hidden = self.hidden[shape]
        if shape.num_prompt_tokens:
            hidden = hidden.index_select(0, batch.logit_indices)
        columns = table.parameters.columns(
            batch.sampled_rows,
            batch.sampled_positions,
            num_logprobs=-1,
            all_greedy=not is_random,
            any_filter=is_random,
        )
        sampled = self._choose(hidden, columns, self._masks, self._buffer[: shape.num_rows])
        table.keep_sampled(batch.sampled_rows, sampled.tokens)
        return sampled
