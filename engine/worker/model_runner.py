"""Feeds the batch of a plan to the model of one rank, and chooses what follows.

By one launch of a captured CUDA graph where one fits, or by launching kernel after kernel.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import EngineConfig
from engine.model.model import Model
from engine.types import StepPlan
from engine.worker.batch import HostBatch, lay_out, stage_batch
from engine.worker.graphs.cuda_graphs import Computation, CudaGraphs
from engine.worker.graphs.graph_batch import GraphShape
from engine.worker.report import PendingStep
from engine.worker.row_table import RowTable
from engine.worker.sampling.late_choices import LateChoice
from engine.worker.sampling.pooling import Pooler
from engine.worker.sampling.sampler import (
    do_masks_suffice,
    masks_of,
    sample_batch,
)
from engine.worker.staging import stage
from engine.worker.swap.arriving_blocks import ArrivingBlocks
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout, Sampled, SamplingColumns


class ModelRunner:
    """Runs a model on rows of a table, whose lengths, tokens and block tables it writes."""

    def __init__(
        self,
        config: EngineConfig,
        backend: KernelBackend,
        model: Model,
        table: RowTable,
        kv: Tensor,
    ) -> None:
        """Capture no graph yet.

        Args:
            kv: the KV pool, see `KVPool`.
        """
        self._config = config
        self._backend = backend
        self._model = model
        self._table = table
        self._kv = kv
        self._block_size = config.block_size
        self._runtime = table.runtime
        self._pooler = Pooler(table.parameters)
        self._graphs: CudaGraphs | None = None

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture the graphs of common steps, on all ranks the same ones in the same order.

        A graph of one rank waits for those of the others.
        """
        self._graphs = CudaGraphs(
            self._table,
            self._backend,
            Computation(self._feed, self._choose, self._choose_masked),
            self._config,
        )
        self._graphs.capture_common()

    def close(self) -> None:
        """Free all graphs."""
        if self._graphs is not None:
            self._graphs.close()

    def run(
        self, plan: StepPlan, pending: PendingStep, arriving: ArrivingBlocks | None
    ) -> LateChoice | None:
        """Write the block tables of a plan and feed its batch, by a graph where one fits.

        Args:
            pending: takes what is sampled.
            arriving: what layers have to wait for, which no graph can.

        Returns:
            What is left to be done, by any thread, before anything else is enqueued: it waits for
            the host, and then adds to `pending`.

        Raises:
            InvariantViolated: if the plan breaks a promise, see `lay_out`.
        """
        graphs = self._graphs
        shape = graphs.find(plan) if graphs is not None and arriving is None else None
        if graphs is None or shape is None or not graphs.holds_appends(shape, plan):
            self._append(plan)
        if not plan.num_tokens:
            return None
        table = self._table
        batch = lay_out(
            plan,
            table,
            self._block_size,
            is_chunked_alike=self._backend.is_chunked_alike,
        )
        late = None
        if graphs is not None and shape is not None:
            late = self._replay(graphs, shape, plan, batch, pending)
        else:
            self._launch(plan, batch, pending, arriving)
        table.lengths[batch.spans.rows] = batch.spans.ends
        # siblings get the length of their parents
        table.lengths[batch.sampled.rows] = batch.sampled.positions
        return late

    def _append(self, plan: StepPlan) -> None:
        if plan.append_rows:
            places = self._table.places(plan.append_rows, plan.append_indices)
            rows, indices, blocks = stage(self._runtime, *places, plan.append_blocks)
            self._table.block_tables[rows, indices] = blocks.int()

    def _replay(
        self,
        graphs: CudaGraphs,
        shape: GraphShape,
        plan: StepPlan,
        batch: HostBatch,
        pending: PendingStep,
    ) -> LateChoice | None:
        """Feed the batch by one launch of a captured graph; as `run`."""
        if not shape.is_ruled:
            self._add(graphs.replay(shape, plan, batch), batch, pending)
            return None
        fed = graphs.replay_ruled(shape, plan, batch)
        if not do_masks_suffice(batch, self._table):
            self._choose_ruled(batch, fed.tokens, fed.hidden, fed.places, pending)
            return None
        asked = masks_of(batch.sampled, self._table)

        def choose(begun: Callable[[], None]) -> None:
            self._add(graphs.choose_masked(shape, batch, asked, begun), batch, pending)

        return choose

    def _add(self, chosen: tuple[Sampled, Sampled], batch: HostBatch, pending: PendingStep) -> None:
        """Add what graphs have sampled for decodes and for chunks to a step."""
        rows, num_decodes = batch.sampled.rows, batch.num_decodes
        num_logprobs = self._table.parameters.num_logprobs
        for sampled, part in zip(chosen, (rows[:num_decodes], rows[num_decodes:]), strict=True):
            if len(part):
                pending.add(sampled, part, num_logprobs[part])

    def _launch(
        self,
        plan: StepPlan,
        batch: HostBatch,
        pending: PendingStep,
        arriving: ArrivingBlocks | None,
    ) -> None:
        """Feed the batch kernel by kernel."""
        tokens, layout = stage_batch(plan, batch, self._table, self._block_size)
        if arriving is not None:
            layout = replace(layout, before_layer=arriving.before_layer)
        hidden = self._feed(tokens, layout)
        self._choose_ruled(batch, tokens, hidden, np.arange(len(batch.token_rows)), pending)

    def _choose_ruled(
        self,
        batch: HostBatch,
        tokens: Tensor,
        hidden: Tensor,
        places: NDArray[np.int64],
        pending: PendingStep,
    ) -> None:
        """Choose what follows a batch, kernel by kernel, by all rules of its rows.

        Args:
            tokens: [T] int64 that were fed, and [T, hidden_size] their hidden states.
            places: host [N] where the batch's own tokens are in both.
        """
        self._pooler.pool(batch, hidden, places, pending)
        wanted = places[batch.columns["logit_indices"]]
        if not np.array_equal(wanted, np.arange(len(hidden))):
            hidden = hidden.index_select(0, *stage(self._runtime, wanted))
        logits = self._model.logits(hidden, is_deterministic=batch.is_deterministic)
        self._table.history.note(batch.token_rows, batch.columns["positions"], tokens, places)
        sample_batch(self._backend, logits, batch, self._table, pending)

    def _feed(self, tokens: Tensor, layout: BatchLayout) -> Tensor:
        """Feed tokens [T] int64 and return their hidden states, without waiting for the device."""
        layout = self._backend.prepare(layout, self._kv, self._model.windows)
        return self._model.hidden(tokens, self._kv, layout)

    def _choose(self, hidden: Tensor, layout: BatchLayout, columns: SamplingColumns) -> Sampled:
        """Sample what follows hidden states, without waiting for the device."""
        logits = self._model.logits(hidden, is_deterministic=layout.is_deterministic)
        return self._backend.sample(logits, columns)

    def _choose_masked(
        self, hidden: Tensor, columns: SamplingColumns, masks: Tensor, places: Tensor
    ) -> Sampled:
        """The same, of what masks leave."""
        return self._backend.sample_masked(self._model.logits(hidden), columns, masks, places)
