"""What an executor asks of a rank's worker, without importing torch.

`engine.worker.worker.Worker` is one; tests have workers without a model.
"""

from typing import Protocol

from engine.types import Capacity, StepPlan, StepResult


class PendingResult(Protocol):
    """A step that the device may still be working on."""

    def result(self) -> StepResult:
        """Wait until it is done."""
        ...


class RankWorker(Protocol):
    """One rank's model and KV pool.

    Attributes:
        capacity: what fits, the same on every rank.
    """

    capacity: Capacity

    def enqueue(self, plan: StepPlan) -> PendingResult:
        """Hand a plan to the device, which works through plans in order."""
        ...

    def close(self) -> None:
        """Leave the other ranks."""
        ...
