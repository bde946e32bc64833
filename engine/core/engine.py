"""The step loop: schedule, execute, update; nothing else."""

from engine.config import SchedulerConfig
from engine.core.executor import Executor
from engine.core.memory.block_manager import BlockManager
from engine.core.scheduler import Scheduler
from engine.core.scheduling.admission_gate import AdmissionGate
from engine.core.scheduling.policies import (
    make_block_manager,
    make_gate,
    make_order,
    make_preemption,
)
from engine.core.scheduling.preemption import Preemption
from engine.types import StepOutput


class Engine:
    """Drives an executor with a scheduler; the caller owns the loop around it.

    Attributes:
        scheduler: takes requests, aborts and releases of pinned prefixes between steps.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        executor: Executor,
        *,
        block_manager: BlockManager | None = None,
        preemption: Preemption | None = None,
        gate: AdmissionGate | None = None,
    ) -> None:
        """Args: block_manager, preemption, gate: policies instead of those that `config` names."""
        capacity = executor.capacity
        config = config.fitted(capacity.num_blocks, capacity.block_size)
        self._executor = executor
        self.scheduler = Scheduler(
            config,
            capacity,
            block_manager or make_block_manager(config, capacity),
            preemption or make_preemption(config, capacity),
            gate or make_gate(config),
            make_order(config),
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work

    def step(self, now_s: float) -> StepOutput | None:
        """Plan as far ahead as the executor allows, then take in one result.

        Args:
            now_s: seconds on the clock of `Request.arrival_s`.

        Returns:
            What that result means for the clients, or None when there was nothing to do.

        Raises:
            WorkerDied: if a rank is gone; every open request is lost.
        """
        scheduler = self.scheduler
        # before anything is planned of them
        scheduler.expire(now_s)
        while scheduler.num_in_flight < self._executor.run_ahead:
            plan = scheduler.schedule()
            if plan is None:
                break
            self._executor.submit(plan)
        if scheduler.num_in_flight:
            return scheduler.update(self._executor.collect(), now_s)
        return scheduler.take_output(now_s) if scheduler.has_work else None

    def crash(self, now_s: float) -> StepOutput:
        """End what is in the batch after `step` has raised; no step may follow.

        Args:
            now_s: see `step`.
        """
        return self.scheduler.crash(now_s)
