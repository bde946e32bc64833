"""Runs the worker in the caller's own process: for tests, tools and the smallest installation."""

from collections import deque

from engine.types import StepPlan, StepResult
from engine.worker.worker import Worker


class InlineExecutor:
    """An `engine.core.protocols.Executor` whose plans are done as soon as they are submitted."""

    def __init__(self, worker: Worker, run_ahead: int = 1) -> None:
        """Take ownership of the worker."""
        self.capacity = worker.capacity
        self.run_ahead = run_ahead
        self._worker = worker
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Execute the plan and keep its result."""
        self._results.append(self._worker.execute(plan))

    def collect(self) -> StepResult:
        """Hand out the oldest result."""
        return self._results.popleft()

    def close(self) -> None:
        """Close the worker."""
        self._results.clear()
        self._worker.close()
