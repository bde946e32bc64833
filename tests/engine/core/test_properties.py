"""Whatever comes in whatever order: right tokens, one end each, and everything is given back."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.engine.core.harness.block_manager_machine import PagedBlockManagerMachine
from tests.engine.core.harness.grouped_manager_machine import GroupedBlockManagerMachine
from tests.engine.core.harness.state_machines import BlockPoolMachine, EngineMachine
from tests.engine.core.harness.workload import WINDOWS, run_workload

NUM_WORKLOADS = 300


@pytest.mark.parametrize(
    "first_seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if seed else [])
        for seed in range(0, NUM_WORKLOADS, 50)
    ],
)
def test_random_workloads_end_with_right_tokens_and_empty_pools(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        run_workload(seed)


@pytest.mark.parametrize("windows", WINDOWS)
def test_random_workloads_of_window_models_end_alike(windows: tuple[int, ...]) -> None:
    engines = [run_workload(seed, windows=windows) for seed in range(12)]
    stats = [checked.stats for checked in engines]
    assert sum(last.num_recomputed + last.num_swapped_out for last in stats) > 0
    assert sum(last.num_cached_tokens for last in stats) > 0


def test_workloads_reach_every_end_and_preempt_in_both_ways() -> None:
    engines = [run_workload(seed, may_pin=False) for seed in range(40)]
    reasons = {
        answer.reason.name
        for checked in engines
        for answers in checked.answers
        for answer in answers
    }
    assert reasons == {"STOP", "LENGTH", "ABORT", "ERROR"}
    stats = [checked.stats for checked in engines]
    assert sum(last.num_recomputed for last in stats) > 40
    assert sum(last.num_swapped_out for last in stats) > 20
    assert sum(last.num_cached_tokens for last in stats) > 100


# an example that fails is made smaller for up to 300 s, and reported only then
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("machine", "num_examples"),
    [
        (BlockPoolMachine, 100),
        (PagedBlockManagerMachine, 50),
        (GroupedBlockManagerMachine, 20),
        (EngineMachine, 60),
        pytest.param(BlockPoolMachine, 4000, marks=pytest.mark.slow),
        pytest.param(PagedBlockManagerMachine, 2000, marks=pytest.mark.slow),
        pytest.param(GroupedBlockManagerMachine, 800, marks=pytest.mark.slow),
        pytest.param(EngineMachine, 2000, marks=pytest.mark.slow),
    ],
)
def test_no_order_of_commands_breaks_the_model(
    machine: type[RuleBasedStateMachine], num_examples: int
) -> None:
    run_state_machine_as_test(
        machine,
        # the same examples in each run: a rare one must not fail another change than its own
        settings=settings(
            max_examples=num_examples, stateful_step_count=20, deadline=None, derandomize=True
        ),
    )
