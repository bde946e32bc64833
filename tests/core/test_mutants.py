"""Faults put into the core on purpose must be noticed, or the other tests prove nothing."""

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from engine.errors import InvariantViolated
from tests.core.machines import BlockPoolMachine
from tests.core.memory_mutants import LIMIT_MUTANTS, MEMORY_MUTANTS, POOL_MUTANTS
from tests.core.mutants import Mutant
from tests.core.scheduler_mutants import OUTPUT_MUTANTS, PLAN_MUTANTS, SCHEDULER_MUTANTS
from tests.core.workload import run_workload

CORE_MUTANTS = [
    *MEMORY_MUTANTS,
    *LIMIT_MUTANTS,
    *PLAN_MUTANTS,
    *SCHEDULER_MUTANTS,
    *OUTPUT_MUTANTS,
]

NUM_SEEDS = 40
# how a broken core fails; anything else would be a broken mutant
FAILURES = (AssertionError, InvariantViolated, LookupError, ValueError)


@pytest.fixture
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Puts the mutant given as parameter in place."""
    mutant: Mutant = request.param
    with monkeypatch.context() as patch:
        patch.setattr(mutant.owner, mutant.function.__name__, mutant.build())
        yield mutant.fault


def _name(mutant: Mutant) -> str:
    return mutant.fault


@pytest.mark.parametrize("fault", CORE_MUTANTS, indirect=True, ids=_name)
def test_workloads_notice(fault: str) -> None:
    for seed in range(NUM_SEEDS):
        try:
            run_workload(seed)
        except FAILURES:
            return
    pytest.fail(f"not noticed in {NUM_SEEDS} workloads: {fault}")


@pytest.mark.parametrize("fault", POOL_MUTANTS, indirect=True, ids=_name)
def test_the_model_of_the_pool_notices(fault: str) -> None:
    quick = settings(
        max_examples=100, deadline=None, database=None, phases=[Phase.generate], print_blob=False
    )
    with pytest.raises(FAILURES):
        run_state_machine_as_test(BlockPoolMachine, settings=quick)


def test_workloads_pass_without_a_fault() -> None:
    for seed in range(NUM_SEEDS):
        run_workload(seed)
