"""The worker of one rank: executes the scheduler's plans on its share of the model.

It owns the weights, the KV pool and the row table. A step moves blocks, changes rows, then has the
`ModelRunner` feed one batch of decodes and prefill chunks to the model and sample.
"""

import logging
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.model.loader import load_model
from engine.model.model import Model
from engine.model.parallel import TensorParallel, connect, local_device
from engine.model.peer_memory import with_peer_memory
from engine.model.safetensors_folder import Progress
from engine.types import Capacity, StepPlan, StepResult
from engine.worker.block_copy_time import measure_block_copy_s
from engine.worker.kv_pool import KVPool
from engine.worker.memory_budget import share_out
from engine.worker.model_runner import ModelRunner
from engine.worker.plan_check import PlanLimits, check_plan
from engine.worker.report import PendingStep
from engine.worker.row_table import RowTable
from engine.worker.sampling.grammars import make_grammars
from engine.worker.sampling.late_choices import LateChoices
from engine.worker.staging import stage
from engine.worker.swap.arriving_blocks import ArrivingBlocks
from engine.worker.swap.swap_arena import shared_memory
from engine.worker.warm_up import WarmUp
from kernels.backend import KernelBackend
from kernels.runtime import Runtime
from kernels.select import select_backend, select_runtime, torch_threads

logger = logging.getLogger(__name__)

# With fewer prompt tokens, a step waits for whole blocks (docs/decisions/067).
_FEWEST_FED_IN_PARTS = 256


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
        self._parallel = parallel
        self._table = RowTable(
            self.capacity,
            config.scheduler.max_model_len,
            vocab_size=config.model.num_choices,
            runtime=runtime,
            grammars=make_grammars(config),
        )
        self._late = LateChoices(runtime)
        self._runner = ModelRunner(config, backend, model, self._table, pool.kv)
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
            if config.graphs:
                self._runner.capture_graphs()
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
        self._late.wait()
        pending = PendingStep(plan.step, self._runtime)
        check_plan(plan, self._limits)
        # first of all, since what comes back takes longest
        arriving = self.pool.move(plan)
        self._change_rows(plan)
        in_parts = arriving if arriving is not None and _can_wait(plan, arriving) else None
        if arriving is not None and in_parts is None:
            # what they hold is checked before the batch writes to them
            pending.swapped_in(plan.swap_in_sources, arriving.is_spoiled())
        choice = self._runner.run(plan, pending, in_parts)
        if in_parts is not None:
            pending.swapped_in(plan.swap_in_sources, in_parts.is_spoiled())
        self._late.begin(pending, choice)
        self.pool.save(plan)
        self._table.grammars.note(np.asarray(plan.sampled_rows), pending)
        return pending

    def close(self) -> None:
        """Disconnect from the other ranks."""
        self._late.close()
        # NCCL cannot end while a graph has work of it
        self._runner.close()
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

    def _warm_up_copy(self) -> None:
        """Compile the copy of blocks, while no sequence has any."""
        if self.pool.num_blocks > 1:
            self.pool.copy(*stage(self._runtime, [0], [1]))


def load_worker(
    config: EngineConfig,
    *,
    rank: int = 0,
    rendezvous: str | None = None,
    on_progress: Progress = lambda done, total: None,
    swap_view: NDArray[np.uint8] | None = None,
    device_index: int | None = None,
) -> Worker:
    """Connect to the other ranks, load this rank's weights and allocate its pool.

    Args:
        rendezvous: where the ranks meet, see `engine.model.parallel.connect`; None for one rank.
        on_progress: called with the bytes of weights done and in total.
        swap_view: memory for the swap space, see `shared_memory`; None for memory of its own.
        device_index: see `local_device`.

    Raises:
        ConfigError: if the model, the configuration and the machine do not go together.
    """
    device = local_device(config.device, rank, device_index)
    dtype: torch.dtype = getattr(torch, config.dtype)
    backend = select_backend(
        str(device), dtype, compiled=config.compiled_kernels, num_threads=config.num_threads
    )
    torch.set_num_threads(torch_threads(backend, config.num_threads))
    runtime = select_runtime(str(device), compiled=config.compiled_kernels)
    parallel = connect(rank, config.tensor_parallel_size, rendezvous, device)
    try:
        is_one_node = urlsplit(rendezvous or "").scheme == "file"
        parallel = with_peer_memory(parallel, config, device, is_one_node=is_one_node)
        before = runtime.memory()
        model = load_model(config, backend, parallel, on_progress)
        if runtime.captures:
            # the largest step is measured first, and takes kernels
            logger.info("kernels_compiling")
        loaded = runtime.memory()
        weight_bytes = loaded.used - before.used if loaded and before else 0
        budget = share_out(config, runtime, backend, model, weight_bytes)
        config = _fitted(config, budget.blocks // (config.block_size * config.token_bytes))
        swap_memory = None if swap_view is None else shared_memory(swap_view, runtime)
        pool = KVPool(config, backend, runtime, budget.blocks, swap_memory)
    except BaseException:
        parallel.close()
        raise
    if budget.total:
        for line in budget.lines(config.token_bytes, config.scheduler.max_model_len):
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
