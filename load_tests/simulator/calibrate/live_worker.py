"""Workers of this machine, one or several ranks, that engines use one after the other."""

import gc
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import Device, DType, EngineConfig
from engine.core.executor import Executor
from engine.types import Capacity, StepPlan, StepResult, int32
from load_tests.local_engine import local_config, local_executor
from load_tests.simulator.clocks import Timer, timer_of
from load_tests.simulator.simulated_executor import BeamAncestry, SimulatedExecutor
from load_tests.simulator.step_time import StepWork


@dataclass(frozen=True, slots=True)
class LiveStep:
    """One step.

    Attributes:
        work: what was computed.
        step_s: seconds since the result before it, see `timer_of`: what the step takes wherever
            steps follow each other, the scheduler included.
    """

    work: StepWork
    step_s: float


def live_config(folder: Path, device: Device, dtype: DType, **sizes: int) -> EngineConfig:
    """Configure a worker for a model, see `local_config`; `num_blocks` 0 are as many as fit."""
    run_ahead = 1 if device == "cpu" else 2
    return local_config(folder, device, dtype=dtype, run_ahead=run_ahead, **sizes)


class LiveWorker:
    """Weights, pool and graphs, which take long to make.

    Attributes:
        capacity: of all that fits.
        timer: of everything that is measured.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._executor = local_executor(config)
        self.config = config
        self.capacity = self._executor.capacity
        self.timer = timer_of(config.device)
        # the model's modules are no garbage, and looking at them takes longer than a step
        gc.collect()
        gc.freeze()

    def turn(
        self, *, num_blocks: int = 0, num_rows: int = 0, ancestry: BeamAncestry | None = None
    ) -> "Turn":
        """Let another engine use the worker; the last one must have been closed.

        Args:
            num_blocks, num_rows: that it may use at most; 0 for all.
            ancestry: of beams, whose choices then are simulated; None leaves them to the model.
                Searches are not planned ahead of their results, so that two plans in flight would
                split them into halves that take turns: there is one.
        """
        capacity = replace(
            self.capacity,
            num_blocks=min(num_blocks or self.capacity.num_blocks, self.capacity.num_blocks),
            num_rows=min(num_rows or self.capacity.num_rows, self.capacity.num_rows),
        )
        return Turn(self._executor, capacity, self.timer, ancestry)

    def block_copy_s(self, num_blocks: int = 64, repeats: int = 8) -> float:
        """Seconds to copy a block inside of the pool, whose contents are lost."""
        num_blocks = min(num_blocks, self.capacity.num_blocks // 2)
        sources, targets = int32(list(range(num_blocks))), int32(list(range(num_blocks)))
        plan = StepPlan(
            step=0,
            copy_sources=sources,
            copy_destinations=int32([num_blocks + block for block in targets]),
        )
        times_s = []
        for _ in range(repeats):
            self._executor.submit(plan)
            times_s.append(self._executor.collect().elapsed_s)
        times_s.sort()
        return times_s[repeats // 2] / num_blocks

    def close(self) -> None:
        """Give the memory back."""
        self._executor.close()
        gc.unfreeze()


class Turn:
    """An executor for one engine.

    Beside the worker it feeds a simulated executor, which knows lengths and, if asked for, chooses.

    Attributes:
        steps: those whose results were collected.
        timer: that times them.
    """

    def __init__(
        self,
        executor: Executor,
        capacity: Capacity,
        timer: Timer,
        ancestry: BeamAncestry | None,
    ) -> None:
        self.capacity = capacity
        self.run_ahead = 1 if ancestry else executor.run_ahead
        self.steps: list[LiveStep] = []
        self._executor = executor
        self._works = _Works()
        self._shadow = SimulatedExecutor(capacity, self._works, ancestry=ancestry)
        self._chooses = ancestry is not None
        self._rows: set[int] = set()
        self.timer = timer
        self._last_s = timer()

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`."""
        self._executor.submit(plan)
        self._shadow.submit(plan)
        self._rows.difference_update(plan.releases)
        self._rows.update(admission.row for admission in plan.admissions)
        # the child of a row that is free is free, too
        forks = list(zip(plan.fork_parents, plan.fork_children, strict=True))
        in_use = {child for parent, child in forks if parent in self._rows}
        self._rows.difference_update(plan.fork_children)
        self._rows |= in_use

    def collect(self) -> StepResult:
        """See `Executor.collect`."""
        result = self._executor.collect()
        now_s = self.timer()
        step_s, self._last_s = now_s - self._last_s, now_s
        self.steps.append(LiveStep(self._works.in_flight.popleft(), step_s))
        chosen = self._shadow.collect()
        if not self._chooses:
            return result
        return replace(
            result,
            tokens=chosen.tokens,
            top_counts=chosen.top_counts,
            top_tokens=chosen.top_tokens,
            top_logprobs=chosen.top_logprobs,
        )

    def context_lens(self, plan: StepPlan) -> list[int]:
        """See `SimulatedExecutor.context_lens`."""
        return self._shadow.context_lens(plan)

    def close(self) -> None:
        """Drop what is open, so that the next engine finds an empty table."""
        while self._works.in_flight:
            self._works.in_flight.popleft()
            self._executor.collect()
        if self._rows:
            self._executor.submit(StepPlan(step=0, releases=int32(sorted(self._rows))))
            self._executor.collect()
            self._rows.clear()


class _Works:
    """A model of the step's time that only remembers what is asked."""

    def __init__(self) -> None:
        self.in_flight: deque[StepWork] = deque()

    def seconds(self, work: StepWork) -> float:
        self.in_flight.append(work)
        return 0.0
