"""The KV pool: keys and values of all tokens, a tensor of equal blocks (paper, section 4.1)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.config import EngineConfig, longest_sequence, swap_arena_bytes
from engine.errors import ConfigError
from engine.integers import div_ceil
from engine.types import IntColumn, StepPlan
from engine.worker.staging import stage
from engine.worker.swap.arriving_blocks import ArrivingBlocks, BlockMoves
from engine.worker.swap.swap_arena import SwapArena, key_tensor, make_headers
from kernels.backend import KernelBackend
from kernels.runtime import Runtime


class KVPool:
    """All blocks of one rank.

    Attributes:
        kv: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]; one block holds all
            layers of a group, so that copying or moving it is one operation.
        arena: the swap space.
    """

    def __init__(
        self,
        config: EngineConfig,
        backend: KernelBackend,
        runtime: Runtime,
        num_bytes: int,
        swap_memory: Tensor | None = None,
    ) -> None:
        """Allocate the pool.

        Args:
            num_bytes: memory of the pool, where the configuration does not say how many blocks.
            swap_memory: host uint8 of the swap space, zeros where nothing was written; None
                allocates what the configuration says.

        Raises:
            ConfigError: if memory is short, or one sequence of the longest length has no room.
        """
        # of all groups of layers
        whole_bytes = config.block_size * config.token_bytes
        num_whole = config.num_blocks or num_bytes // whole_bytes
        _check_room(config, num_whole, whole_bytes)
        groups = config.model.kv_groups
        # with windows the block manager keeps one that stands for all that are released
        num_blocks = num_whole * groups.count + any(groups.windows)
        self._backend = backend
        self._runtime = runtime
        self.kv = _allocate((num_blocks, *config.block_shape), backend.dtype, runtime)
        if swap_memory is None:
            num_slots = (config.swap_bytes or 0) // config.block_bytes
            num_swap_bytes = swap_arena_bytes(num_slots, config.block_bytes)
            swap_memory = runtime.host_memory(num_swap_bytes)
        self.arena = SwapArena(swap_memory, config.block_shape, backend.dtype)
        self._checksum = backend.make_checksum(self.kv)
        # marks of blocks that may still be on their way out, and of the slots that they go to
        self._leaving_blocks: dict[int, object] = {}
        self._filling_slots: dict[int, object] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.kv.shape[0]

    @property
    def num_swap_blocks(self) -> int:
        """Blocks that fit the swap space."""
        return self.arena.num_slots

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.kv.shape[4]

    def move(self, plan: StepPlan) -> ArrivingBlocks | None:
        """Move what must be in its place before the batch of a plan is fed; then comes `save`.

        Returns:
            What the batch has to wait for; None if nothing comes back.
        """
        if not _may_leave_later(plan):
            self._swap_out(plan)
        # what this plan hands out anew, an earlier one or this one may have saved
        self.protect([plan.append_blocks, plan.copy_destinations])
        arriving = None
        if plan.swap_in_destinations:
            columns = plan.swap_in_sources, plan.swap_in_destinations, plan.swap_in_keys
            arriving = self.swap_in(*columns)
        if plan.copy_sources:
            if arriving is not None:
                arriving.wait()
            self.copy(*stage(self._runtime, plan.copy_sources, plan.copy_destinations))
        return arriving

    def save(self, plan: StepPlan) -> None:
        """Move out what `move` has left, beside later steps: nobody waits for it."""
        if _may_leave_later(plan):
            self._swap_out(plan)

    def copy(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy whole blocks, both [N] int64 (copy-on-write; paper, section 4.4)."""
        self._backend.copy_blocks(self.kv, sources, destinations)

    def swap_out(self, blocks: IntColumn, slots: IntColumn, keys: IntColumn) -> None:
        """Copy whole blocks to slots of the swap space (paper, section 4.5).

        The copies may overlap with later steps, until `protect` asks for one of the blocks.

        Args:
            keys: int64, `KEY_WORDS` for each slot: what it holds from now on.
        """
        checksums = self._checksum(*stage(self._runtime, blocks))
        headers = make_headers(self._runtime.to_device(key_tensor(keys)), checksums)
        sources, targets = blocks.tolist(), slots.tolist()
        marks = self._runtime.move_out(self.kv, sources, self.arena.blocks, targets)
        # behind the blocks: whoever finds a header finds its block
        rows = list(range(len(targets)))
        written = self._runtime.move_out(headers, rows, self.arena.headers, targets)
        # no marks where all is done already
        self._leaving_blocks.update(zip(sources, marks, strict=False))
        self._filling_slots.update(zip(targets, written, strict=False))

    def swap_in(self, slots: IntColumn, blocks: IntColumn, keys: IntColumn) -> ArrivingBlocks:
        """Begin to copy slots of the swap space back to blocks, beside earlier steps.

        Args:
            keys: int64, `KEY_WORDS` for each slot: what it should hold.

        Returns:
            What waits for them; later work must.
        """
        sources, targets = slots.tolist(), blocks.tolist()
        moving = _taken(self._leaving_blocks, targets) + _taken(self._filling_slots, sources)
        moves = BlockMoves(sources, targets, key_tensor(keys))
        arriving = ArrivingBlocks(self._runtime, self.arena, self.kv, self._checksum, moves)
        arriving.begin(after=moving)
        return arriving

    def protect(self, written: Iterable[IntColumn]) -> None:
        """Let later work wait for the copies of blocks that it may write."""
        if self._leaving_blocks:
            blocks = {block for column in written for block in column}
            self._runtime.wait_for(_taken(self._leaving_blocks, blocks))

    def _swap_out(self, plan: StepPlan) -> None:
        if plan.swap_out_sources:
            self.swap_out(plan.swap_out_sources, plan.swap_out_destinations, plan.swap_out_keys)


def _may_leave_later(plan: StepPlan) -> bool:
    """Whether a plan needs nothing of what it swaps out: neither the blocks nor the slots."""
    needed = plan.append_blocks, plan.copy_destinations, plan.swap_in_destinations
    leaving = set(plan.swap_out_sources)
    return all(leaving.isdisjoint(blocks) for blocks in needed) and set(
        plan.swap_out_destinations
    ).isdisjoint(plan.swap_in_sources)


def _taken(moving: dict[int, object], places: Iterable[int]) -> list[object]:
    """The marks of places that are still waited for; from now on they are not."""
    return [moving.pop(place) for place in moving.keys() & set(places)]


def _check_room(config: EngineConfig, num_blocks: int, block_bytes: int) -> None:
    longest = config.scheduler.max_model_len
    num_slots = longest_sequence(
        num_blocks,
        config.block_size,
        config.model.kv_groups.windows,
        config.scheduler.max_step_tokens,
    )
    if num_slots >= longest:
        return
    needed = div_ceil(longest, config.block_size)
    # in GiB, rounded up to a hundredth
    enough = f"kv_cache_gib to {needed * block_bytes / (1 << 30) + 0.01:.2f}"
    if config.num_blocks:
        enough = f"num_blocks to {needed}"
    raise ConfigError(
        f"the KV pool holds {num_slots} tokens, fewer than max_model_len {longest}; raise {enough} "
        "or lower max_model_len"
    )


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, runtime: Runtime) -> Tensor:
    try:
        return runtime.device_blocks(shape, dtype)
    except RuntimeError as error:
        num_bytes = math.prod(shape) * dtype.itemsize
        raise ConfigError(
            f"{num_bytes} bytes of KV pool do not fit the memory of {runtime.device}; lower "
            "kv_cache_gib (or num_blocks)"
        ) from error
