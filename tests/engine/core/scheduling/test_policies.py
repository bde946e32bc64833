from dataclasses import replace
from typing import get_args

import pytest

from engine.config import MemoryPolicy, PreemptionPolicy, QueuePolicy, SchedulerConfig
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.memory.reserved.reserved_block_manager import ReservedBlockManager
from engine.core.memory.windows.grouped_block_manager import GroupedBlockManager
from engine.core.scheduling.admission_gate import BatchGate, IterationGate
from engine.core.scheduling.policies import (
    make_block_manager,
    make_gate,
    make_order,
    make_preemption,
)
from engine.core.scheduling.preemption import (
    CheapestPreemption,
    FixedPreemption,
    Preemption,
    SharedPreemption,
)
from engine.core.scheduling.queue_order import FairOrder, PriorityOrder, QueueOrder
from engine.errors import ConfigError
from engine.types import Capacity

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=4)
MEASURED = replace(CAPACITY, block_copy_s=1e-4)


def _config(
    manager: MemoryPolicy = "paged", preemption: PreemptionPolicy = "auto"
) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=64,
        max_model_len=64,
        memory_policy=manager,
        preemption=preemption,
        prompt_share=1.0,
    )


@pytest.mark.parametrize("policy", get_args(MemoryPolicy))
def test_only_paged_memory_is_paged(policy: MemoryPolicy) -> None:
    expected = PagedBlockManager if policy == "paged" else ReservedBlockManager
    assert isinstance(make_block_manager(_config(policy), CAPACITY), expected)


def test_window_models_have_blocks_for_each_group_of_layers() -> None:
    windowed = replace(CAPACITY, windows=(0, 128))
    assert isinstance(make_block_manager(_config(), windowed), GroupedBlockManager)
    with pytest.raises(ConfigError, match="memory_policy reserved_max is not for models with"):
        make_block_manager(_config("reserved_max"), windowed)
    pinning = replace(_config(), pinned_prefix_share=0.5)
    with pytest.raises(ConfigError, match="cannot be pinned; set it to 0"):
        make_block_manager(pinning, windowed)


def test_each_order_of_the_queue_has_its_policy() -> None:
    orders: dict[str, type[QueueOrder]] = {
        policy: type(make_order(replace(_config(), queue_policy=policy)))
        for policy in get_args(QueuePolicy)
    }
    assert orders == {"fcfs": QueueOrder, "fair": FairOrder, "priority": PriorityOrder}


@pytest.mark.parametrize("policy", get_args(MemoryPolicy))
def test_only_faster_transformer_forms_batches(policy: MemoryPolicy) -> None:
    expected = BatchGate if policy == "faster_transformer" else IterationGate
    assert isinstance(make_gate(_config(policy)), expected)


@pytest.mark.parametrize(
    ("policy", "capacity", "expected"),
    [
        ("swap", MEASURED, FixedPreemption(swap=True)),
        ("recompute", MEASURED, FixedPreemption(swap=False)),
        ("auto", CAPACITY, SharedPreemption()),
    ],
)
def test_fixed_ways_stay_fixed(
    policy: PreemptionPolicy, capacity: Capacity, expected: Preemption
) -> None:
    assert make_preemption(_config(preemption=policy), capacity) == expected


def test_auto_compares_costs_where_copies_are_measured() -> None:
    assert isinstance(make_preemption(_config(), MEASURED), CheapestPreemption)


def test_the_gate_lets_as_many_overtake_as_configured() -> None:
    config = replace(_config(), max_overtakes=3)
    assert make_gate(config) == IterationGate(max_overtakes=3)
    assert make_gate(_config()) == IterationGate(max_overtakes=0)
