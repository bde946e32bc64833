"""The step loop: schedule, execute, update; nothing else."""

from engine.config import SchedulerConfig
from engine.core.admission_gate import AdmissionGate
from engine.core.memory import Memory
from engine.core.policies import make_gate, make_memory, make_preemption
from engine.core.preemption import Preemption
from engine.core.protocols import Executor
from engine.core.scheduler import Scheduler
from engine.types import ALL_CHOICES, Request, StepOutput


class Engine:
    """Drives an executor with a scheduler; the caller owns the loop around it."""

    def __init__(
        self,
        config: SchedulerConfig,
        executor: Executor,
        *,
        memory: Memory | None = None,
        preemption: Preemption | None = None,
        gate: AdmissionGate | None = None,
    ) -> None:
        """Args: memory, preemption, gate: policies instead of those that `config` names."""
        capacity = executor.capacity
        self._executor = executor
        self._scheduler = Scheduler(
            config,
            capacity,
            memory or make_memory(config, capacity),
            preemption or make_preemption(config, capacity),
            gate or make_gate(config),
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequest, PromptTooLong: if it can never be served; nothing is changed.
        """
        self._scheduler.add(request)

    def abort(self, request_id: int, choice: int = ALL_CHOICES) -> None:
        """End a request or one of its choices; see `Scheduler.abort`."""
        self._scheduler.abort(request_id, choice)

    def reserve_prefix(self, request: Request) -> None:
        """Queue a request whose prompt stays in the pool once it is computed.

        It ends without output: by LENGTH when the prefix is pinned, otherwise it is not.

        Args:
            request: with a `Pin`, and one sequence of one token.

        Raises:
            InvalidRequest: if its name is taken, it fills no block, the budget is too small or the
                memory cannot pin; nothing is changed.
            PromptTooLong: see `add`.
        """
        assert request.pin is not None
        self._scheduler.add(request)

    def release_prefix(self, salt: bytes, name: str) -> None:
        """Give up a tenant's pinned prefix, computed or not; unknown ones are ignored."""
        self._scheduler.release_prefix(salt, name)

    def step(self, now_s: float) -> StepOutput | None:
        """Plan as far ahead as the executor allows, then take in one result.

        Args:
            now_s: seconds on the clock of `Request.arrival_s`.

        Returns:
            The news of that result, or None when there was nothing to do.

        Raises:
            WorkerDied: if a rank is gone; every open request is lost.
        """
        scheduler = self._scheduler
        while scheduler.num_in_flight < self._executor.run_ahead:
            plan = scheduler.schedule()
            if plan is None:
                break
            self._executor.submit(plan)
        if scheduler.num_in_flight:
            return scheduler.update(self._executor.collect(), now_s)
        return scheduler.take_output(now_s) if scheduler.has_work else None
