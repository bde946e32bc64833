"""Makes the policies that a configuration names: the systems that the paper compares."""

from engine.config import QueuePolicy, SchedulerConfig
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.headroom import Headroom
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.pinned_prefixes import PinLimits
from engine.core.memory.reserved.reservation import output_estimate
from engine.core.memory.reserved.reserved_block_manager import ReservedBlockManager
from engine.core.memory.windows.grouped_block_manager import GroupedBlockManager
from engine.core.scheduling.admission_gate import AdmissionGate, BatchGate, IterationGate
from engine.core.scheduling.preemption import (
    CheapestPreemption,
    FixedPreemption,
    Preemption,
    SharedPreemption,
)
from engine.core.scheduling.queue_order import FairOrder, PriorityOrder, QueueOrder
from engine.errors import ConfigError
from engine.integers import div_ceil
from engine.types import Capacity


def make_block_manager(config: SchedulerConfig, capacity: Capacity) -> BlockManager:
    """Make the policy for the KV cache.

    Raises:
        ConfigError: if the share for pinned prefixes could starve it, or if layers have windows
            and the configuration asks for what such models do not have.
    """
    if any(capacity.windows):
        return _make_grouped(config, capacity)
    config.check_pinned_share(capacity.num_blocks, capacity.block_size)
    if config.memory_policy == "paged":
        manager = PagedBlockManager(
            capacity.num_blocks,
            capacity.block_size,
            num_swap_blocks=capacity.num_swap_blocks,
            headroom=_headroom(config),
            prefix_cache=config.prefix_cache,
            pins=PinLimits(
                num_blocks=config.num_pinnable(capacity.num_blocks),
                per_tenant=config.max_pinned_prefixes,
            ),
        )
        if capacity.num_swap_blocks and config.prefix_cache:
            # a step fills at most so many blocks, and the pool may lose as many for it
            most_saved = div_ceil(config.max_step_tokens, capacity.block_size)
            manager.use_second_level(most_saved, capacity.swap_keys)
        return manager
    return ReservedBlockManager(
        capacity.num_blocks,
        capacity.block_size,
        max_len=config.max_model_len,
        estimate=output_estimate(config),
    )


def _headroom(config: SchedulerConfig) -> Headroom:
    # what enters can be computed in one step, so that only long prompts get blocks later
    return Headroom(
        watermark=config.watermark,
        growth_blocks=config.growth_blocks,
        most_at_once=config.max_step_tokens,
    )


def _make_grouped(config: SchedulerConfig, capacity: Capacity) -> BlockManager:
    if config.memory_policy != "paged":
        raise ConfigError(
            f"memory_policy {config.memory_policy} is not for models with window layers; set it to "
            "paged"
        )
    if config.pinned_prefix_share:
        raise ConfigError(
            f"pinned_prefix_share is {config.pinned_prefix_share}, but prefixes of models with "
            "window layers cannot be pinned; set it to 0"
        )
    return GroupedBlockManager(
        capacity.num_blocks,
        capacity.block_size,
        capacity.windows,
        num_swap_blocks=capacity.num_swap_blocks,
        headroom=_headroom(config),
        prefix_cache=config.prefix_cache,
    )


def make_preemption(config: SchedulerConfig, capacity: Capacity) -> Preemption:
    """Make the choice between swapping and recomputing."""
    if config.preemption != "auto":
        return FixedPreemption(swap=config.preemption == "swap")
    if capacity.block_copy_s:
        return CheapestPreemption(block_copy_s=capacity.block_copy_s)
    return SharedPreemption()


def make_order(config: SchedulerConfig) -> QueueOrder:
    """Make the policy for the order in which new requests enter the batch."""
    orders: dict[QueuePolicy, type[QueueOrder]] = {
        "fcfs": QueueOrder,
        "fair": FairOrder,
        "priority": PriorityOrder,
    }
    return orders[config.queue_policy]()


def make_gate(config: SchedulerConfig) -> AdmissionGate:
    """Make the policy for the requests that enter the batch."""
    if config.memory_policy == "faster_transformer":
        return BatchGate(max_total_len=config.max_model_len)
    return IterationGate(max_overtakes=config.max_overtakes)
