"""The worker of one rank: executes the scheduler's plans on its share of the model.

It owns the weights, the KV pool and the row table. A step changes rows, moves blocks, then feeds
one batch of decodes and prefill chunks to the model and samples: by a captured CUDA graph where one
fits, or by launching kernel after kernel.
"""

import logging
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import EngineConfig
from engine.model.loader import load_model
from engine.model.model import Model
from engine.model.parallel import TensorParallel, connect, local_device
from engine.model.peer_memory import with_peer_memory
from engine.model.safetensors_folder import Progress
from engine.types import Capacity, StepPlan, StepResult
from engine.worker.batch import HostBatch, lay_out, stage_batch
from engine.worker.block_copy_time import measure_block_copy_s
from engine.worker.graphs.cuda_graphs import Computation, CudaGraphs
from engine.worker.graphs.graph_batch import GraphShape
from engine.worker.kv_pool import KVPool, bytes_per_block
from engine.worker.memory_budget import share_out
from engine.worker.plan_check import PlanLimits, check_plan
from engine.worker.report import PendingStep
from engine.worker.row_table import RowTable
from engine.worker.sampling.grammars import make_grammars
from engine.worker.sampling.pooling import Pooler
from engine.worker.sampling.sampler import (
    choose_masked,
    do_masks_suffice,
    masks_of,
    sample_batch,
)
from engine.worker.staging import stage
from engine.worker.swap.arriving_blocks import ArrivingBlocks
from engine.worker.swap.swap_arena import SharedMemory
from engine.worker.warm_up import WarmUp
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout, Sampled, SamplingColumns
from kernels.runtime import Runtime
from kernels.select import select_backend, select_runtime

logger = logging.getLogger(__name__)

# With fewer prompt tokens, a step waits for whole blocks. No step has as many: on a GPU, where 256
# may be right, feeding in parts has not been timed yet (docs/decisions/067).
_FEWEST_FED_IN_PARTS = 1 << 30


class Worker:
    """Executes plans in order; every rank executes the same ones.

    Attributes:
        capacity: what fits, the same on every rank.
        pool: keys and values.
    """

    def __init__(
        self,
        config: EngineConfig,
        runtime: Runtime,
        backend: KernelBackend,
        parallel: TensorParallel,
        model: Model,
        pool: KVPool,
    ) -> None:
        """Take ownership of the parts; on a GPU, compile kernels and capture CUDA graphs."""
        self.capacity = Capacity(
            num_blocks=pool.num_blocks,
            windows=config.model.kv_groups.windows,
            block_size=pool.block_size,
            num_rows=config.max_num_seqs,
            num_swap_blocks=pool.num_swap_blocks,
            block_copy_s=measure_block_copy_s(pool),
            swap_keys=pool.arena.keys(),
        )
        self.pool = pool
        self._runtime = runtime
        self._backend = backend
        self._parallel = parallel
        self._model = model
        self._table = RowTable(
            self.capacity,
            config.scheduler.max_model_len,
            vocab_size=config.model.num_choices,
            runtime=runtime,
            grammars=make_grammars(config),
        )
        self._pooler = Pooler(self._table.parameters)
        self._limits = PlanLimits(
            num_rows=config.max_num_seqs,
            num_blocks=pool.num_blocks,
            num_swap_blocks=pool.num_swap_blocks,
            num_positions=config.scheduler.max_model_len,
            max_blocks=self._table.block_tables.shape[1] * len(self.capacity.windows),
            vocab_size=config.model.vocab_size,
        )
        if runtime.captures:
            WarmUp(config, backend, model).compile_kernels()
            self._warm_up_copy()
        self._graphs: CudaGraphs | None = None
        # all ranks capture the same shapes in the same order: a graph of one waits for the others'
        if config.graphs and runtime.captures:
            self._graphs = self._capture_graphs(config)
        parallel.begin_steps(runtime.device)

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one plan and wait for its result, see `enqueue`."""
        return self.enqueue(plan).result()

    @torch.inference_mode()
    def enqueue(self, plan: StepPlan) -> PendingStep:
        """Carry out one plan, see `StepPlan` for the order.

        The device may still be at work when this returns, and later plans may follow at once.

        Returns:
            What will be one token for each sampled row: -1 where the row's logits were not finite,
            which does not affect other rows.

        Raises:
            InvariantViolated: if the plan breaks a promise; the worker must not be used any more.
        """
        pending = PendingStep(plan.step, self._runtime)
        check_plan(plan, self._limits)
        # first of all, since what comes back takes longest
        arriving = self.pool.move(plan)
        self._change_rows(plan)
        in_parts = arriving if arriving is not None and _can_wait(plan, arriving) else None
        if arriving is not None and in_parts is None:
            # what they hold is checked before the batch writes to them
            pending.swapped_in(plan.swap_in_sources, arriving.is_spoiled())
        self._run(plan, pending, in_parts)
        if in_parts is not None:
            pending.swapped_in(plan.swap_in_sources, in_parts.is_spoiled())
        pending.fetch()
        self.pool.save(plan)
        self._table.grammars.note(np.asarray(plan.sampled_rows), pending)
        return pending

    def close(self) -> None:
        """Disconnect from the other ranks."""
        if self._graphs is not None:
            # NCCL cannot end while a graph has work of it
            self._graphs.close()
        self._parallel.close()

    def _change_rows(self, plan: StepPlan) -> None:
        table = self._table
        if plan.releases:
            table.release(np.asarray(plan.releases))
        if plan.admissions:
            table.admit(plan.admissions)
        if plan.fork_parents:
            table.fork(np.asarray(plan.fork_parents), np.asarray(plan.fork_children))
        if plan.token_rows:
            rows, tokens = stage(self._runtime, plan.token_rows, plan.token_values)
            table.last_tokens[rows] = tokens
            table.grammars.override(plan.token_rows, plan.token_values)

    def _run(self, plan: StepPlan, pending: PendingStep, arriving: ArrivingBlocks | None) -> None:
        """Write the block tables and feed the batch, by a graph where one fits.

        Args:
            arriving: what layers have to wait for, which no graph can.
        """
        graphs = self._graphs
        shape = graphs.find(plan) if graphs is not None and arriving is None else None
        if graphs is None or shape is None or not graphs.holds_appends(shape, plan):
            self._append(plan)
        if not plan.num_tokens:
            return
        table = self._table
        batch = lay_out(
            plan,
            table,
            self.pool.block_size,
            is_chunked_alike=self._backend.is_chunked_alike,
        )
        if graphs is not None and shape is not None:
            self._replay(graphs, shape, plan, batch, pending)
        else:
            self._launch(plan, batch, pending, arriving)
        table.lengths[batch.spans.rows] = batch.spans.ends
        # siblings get the length of their parents
        table.lengths[batch.sampled.rows] = batch.sampled.positions

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
    ) -> None:
        """Feed the batch by one launch of a captured graph."""
        if shape.is_ruled:
            fed = graphs.replay_ruled(shape, plan, batch)
            if not do_masks_suffice(batch, self._table):
                self._choose_ruled(batch, fed.tokens, fed.hidden, fed.places, pending)
                return
            places, masks = masks_of(batch.sampled, self._table)
            decodes, chunks = graphs.choose_masked(shape, batch, places, masks)
        else:
            decodes, chunks = graphs.replay(shape, plan, batch)
        rows, num_decodes = batch.sampled.rows, batch.num_decodes
        num_logprobs = self._table.parameters.num_logprobs
        for sampled, part in ((decodes, rows[:num_decodes]), (chunks, rows[num_decodes:])):
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
        tokens, layout = stage_batch(plan, batch, self._table, self.pool.block_size)
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
        kv = self.pool.kv
        return self._model.hidden(
            tokens, kv, self._backend.prepare(layout, kv, self._model.windows)
        )

    def _choose(self, hidden: Tensor, layout: BatchLayout, columns: SamplingColumns) -> Sampled:
        """Sample what follows hidden states, without waiting for the device."""
        logits = self._model.logits(hidden, is_deterministic=layout.is_deterministic)
        return self._backend.sample(logits, columns)

    def _choose_masked(
        self, hidden: Tensor, columns: SamplingColumns, places: Tensor, masks: Tensor
    ) -> Sampled:
        """The same, of what masks leave."""
        logits = self._model.logits(hidden)
        return choose_masked(self._backend, logits, columns, places, masks)

    def _warm_up_copy(self) -> None:
        """Compile the copy of blocks, while no sequence has any."""
        if self.pool.num_blocks > 1:
            self.pool.copy(*stage(self._runtime, [0], [1]))

    @torch.inference_mode()
    def _capture_graphs(self, config: EngineConfig) -> CudaGraphs:
        graphs = CudaGraphs(
            self._table,
            self._backend,
            Computation(self._feed, self._choose, self._choose_masked),
            max_num_rows=config.max_num_seqs,
            max_num_tokens=config.scheduler.max_num_batched_tokens,
            block_size=self.pool.block_size,
        )
        graphs.capture_common()
        return graphs


def load_worker(
    config: EngineConfig,
    *,
    rank: int = 0,
    rendezvous: str | None = None,
    on_progress: Progress = lambda done, total: None,
    swap_view: NDArray[np.uint8] | None = None,
) -> Worker:
    """Connect to the other ranks, load this rank's weights and allocate its pool.

    Args:
        rendezvous: where the ranks meet, see `engine.model.parallel.connect`; None for one rank.
        on_progress: called with the bytes of weights done and in total.
        swap_view: memory for the swap space, see `SharedMemory`; None for memory of its own.

    Raises:
        ConfigError: if the model, the configuration and the machine do not go together.
    """
    torch.set_num_threads(config.num_threads)
    device = local_device(config.device, rank)
    dtype: torch.dtype = getattr(torch, config.dtype)
    backend = select_backend(str(device), dtype, compiled=config.compiled_kernels)
    runtime = select_runtime(str(device), compiled=config.compiled_kernels)
    parallel = connect(rank, config.tensor_parallel_size, rendezvous, device)
    try:
        is_one_node = urlsplit(rendezvous or "").scheme == "file"
        parallel = with_peer_memory(parallel, config, device, is_one_node=is_one_node)
        before = runtime.memory()
        model = load_model(config, backend, parallel, on_progress)
        loaded = runtime.memory()
        weight_bytes = loaded.used - before.used if loaded and before else 0
        budget = share_out(config, runtime, backend, model, weight_bytes)
        config = _fitted(config, budget.blocks // bytes_per_block(config, parallel, backend))
        swap_memory = SharedMemory(swap_view) if swap_view is not None else None
        pool = KVPool(config, parallel, backend, runtime, budget.blocks, swap_memory)
    except BaseException:
        parallel.close()
        raise
    if budget.total:
        value_bytes = backend.dtype.itemsize
        token_bytes = config.model.kv_bytes_per_token(value_bytes, parallel.size)
        for line in budget.lines(token_bytes, config.scheduler.max_model_len):
            logger.info("memory %s", line)
    return Worker(config, runtime, backend, parallel, model, pool)


def _can_wait(plan: StepPlan, arriving: ArrivingBlocks) -> bool:
    """Whether the layers of a batch are to wait for their parts of what comes back, each by itself.

    Not if a group was swapped out that goes on by a token: it may write to its last block.
    """
    is_long = len(plan.prefill_tokens) >= _FEWEST_FED_IN_PARTS
    has_swapped = any(admission.length for admission in plan.admissions)
    return arriving.num_parts > 1 and is_long and not has_swapped


def _fitted(config: EngineConfig, num_blocks: int) -> EngineConfig:
    """Clip the context to a pool of a measured size, where it may be clipped."""
    scheduler = config.scheduler.fitted(
        config.num_blocks or num_blocks, config.block_size, config.model.kv_groups.windows
    )
    if scheduler is not config.scheduler:
        logger.warning(
            "context_clipped max_model_len=%d model_max=%d reason=kv_pool",
            scheduler.max_model_len,
            config.scheduler.max_model_len,
        )
    return replace(config, scheduler=scheduler)
