"""What the core needs from outside: an executor that carries out plans."""

from typing import Protocol

from engine.types import Capacity, StepPlan, StepResult


class Executor(Protocol):
    """Carries out plans on the workers; results come back in the order of submission.

    Attributes:
        capacity: what the workers can hold; fixed for the executor's life.
        run_ahead: plans that may be submitted before the first result is collected, at least 1.
    """

    capacity: Capacity
    run_ahead: int

    def submit(self, plan: StepPlan) -> None:
        """Send a plan to all ranks without waiting for it."""
        ...

    def collect(self) -> StepResult:
        """Wait for the result of the oldest plan that is not collected yet.

        Raises:
            WorkerDied: if a rank is gone.
        """
        ...

    def close(self) -> None:
        """Free what the executor holds; plans in flight are dropped."""
        ...
