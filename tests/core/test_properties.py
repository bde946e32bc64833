"""Whatever comes in whatever order: right tokens, one end each, and everything is given back."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.core.machines import BlockPoolMachine, EngineMachine, PagedMemoryMachine
from tests.core.workload import run_workload


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_random_workloads_end_with_right_tokens_and_empty_pools(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        run_workload(seed)


def test_workloads_reach_every_end_and_preempt() -> None:
    harnesses = [run_workload(seed) for seed in range(40)]
    reasons = {answer.reason.name for harness in harnesses for answer in harness.answers}
    assert reasons == {"STOP", "LENGTH", "ABORT", "ERROR"}
    stats = [harness.last_stats for harness in harnesses]
    assert sum(last.num_preemptions for last in stats if last is not None) > 20


@pytest.mark.parametrize("machine", [BlockPoolMachine, PagedMemoryMachine, EngineMachine])
def test_no_order_of_commands_breaks_the_model(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
