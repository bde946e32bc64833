"""The step loop: schedule, execute, update; nothing else."""

import time

from engine.config import SchedulerConfig
from engine.core.events import Events
from engine.core.executor import Executor
from engine.core.memory.block_manager import BlockManager
from engine.core.scheduler import Scheduler
from engine.core.scheduling.policies import (
    make_block_manager,
    make_gate,
    make_order,
    make_preemption,
)
from engine.core.scheduling.preemption import Preemption
from engine.core.scheduling.queues import Queues
from engine.types import StepOutput


class EngineClock:
    """The machine's monotonic clock, and what it has to do with Unix time.

    Attributes:
        epoch_s: Unix time at its 0, as it was when this was made; it is never corrected.
    """

    def __init__(self) -> None:
        self.epoch_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds."""
        return time.monotonic()


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
        clock: EngineClock | None = None,
    ) -> None:
        """Make a scheduler for what the executor can hold.

        Args:
            block_manager, preemption: policies instead of those that `config` names.
            clock: read again when a result has come; without one, that happens at the time at
                which the step began, and times since the epoch are those of this clock.
        """
        capacity = executor.capacity
        config = config.fitted(capacity.num_whole_blocks, capacity.block_size, capacity.windows)
        self._executor = executor
        epoch_s = clock.epoch_s if clock is not None else 0.0
        self.scheduler = Scheduler(
            config,
            capacity,
            block_manager or make_block_manager(config, capacity),
            preemption or make_preemption(config, capacity),
            make_gate(config),
            Queues(make_order(config), Events(epoch_s)),
        )
        self._clock = clock

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
            plan = scheduler.schedule(now_s)
            if plan is None:
                break
            self._executor.submit(plan)
        if scheduler.num_in_flight:
            result = self._executor.collect()
            return scheduler.update(result, now_s if self._clock is None else self._clock.now_s())
        return scheduler.take_output(now_s) if scheduler.has_work else None

    def crash(self, now_s: float) -> StepOutput:
        """End what is in the batch after `step` has raised; no step may follow.

        Args:
            now_s: see `step`.
        """
        return self.scheduler.crash(now_s)
