"""Runs the worker in the caller's own process: for tests, tools and the smallest installation."""

from collections import deque

from engine.executor.rank_worker import PendingResult, RankWorker
from engine.types import StepPlan, StepResult


class InlineExecutor:
    """An executor of one rank. Implements `engine.core.executor.Executor`.

    On a CPU a plan is done as soon as it is submitted; a GPU works on while the caller goes on.
    """

    def __init__(self, worker: RankWorker, run_ahead: int = 1) -> None:
        """Take ownership of the worker."""
        self.capacity = worker.capacity
        self.run_ahead = run_ahead
        self._worker = worker
        self._pending: deque[PendingResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Hand the plan to the device."""
        self._pending.append(self._worker.enqueue(plan))

    def collect(self) -> StepResult:
        """Wait for the oldest result."""
        return self._pending.popleft().result()

    def close(self) -> None:
        """Close the worker."""
        self._pending.clear()
        self._worker.close()
