"""Replays a schedule through the real engine, under a virtual clock where nothing is computed."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.executor import Executor
from engine.core.memory.block_manager import BlockManager
from engine.core.scheduling.policies import make_block_manager
from engine.integers import div_ceil
from engine.types import (
    Capacity,
    IntColumn,
    MemoryUsage,
    Request,
    SamplingParams,
    StepPlan,
    StepResult,
    StepStats,
    int32,
)
from load_tests.simulator.clocks import Clock, VirtualClock
from load_tests.simulator.served_log import ServedLog
from load_tests.simulator.simulated_executor import (
    OUTPUT_TOKEN,
    PROMPT_TOKEN,
    BeamAncestry,
    SimulatedExecutor,
)
from load_tests.simulator.step_time import PaddedBatches, StepTime
from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import Schedule, TimedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One step.

    Attributes:
        end_s: when it ended.
        num_sequences: computed in it.
        num_logical_blocks: blocks that its sequences would hold if they shared none.
        usage: while it ran, between the admissions before it and the ends after it.
        stats: counts after it.
    """

    end_s: float
    num_sequences: int
    num_logical_blocks: int
    usage: MemoryUsage
    stats: StepStats


@dataclass(frozen=True, slots=True)
class Replay:
    """All requests in the order of the schedule, and every step."""

    requests: tuple[Served, ...]
    samples: tuple[Sample, ...]

    def window(self, start_s: float, end_s: float) -> tuple[Sample, ...]:
        """The steps that ended in [start_s, end_s).

        Raises:
            ValueError: if there are none.
        """
        window = tuple(step for step in self.samples if start_s <= step.end_s < end_s)
        if not window:
            raise ValueError(f"no step ended between {start_s:g} s and {end_s:g} s")
        return window


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated.

    Attributes:
        n, beam_width: how every request decodes, see `SamplingParams`.
        replacement: see `BeamAncestry`.
        shared_prefix_len: tokens that all prompts begin with; the rest of each is its own. 0 makes
            all tokens of all prompts alike.
        run_ahead: plans in flight.
    """

    config: SchedulerConfig
    capacity: Capacity
    step_time: StepTime
    n: int = 1
    beam_width: int = 0
    replacement: float = 0.0
    shared_prefix_len: int = 0
    run_ahead: int = 1

    @property
    def in_batches(self) -> bool:
        """Whether whole batches are padded, computed and answered together."""
        return self.config.memory_policy == "faster_transformer"

    def executor(self) -> SimulatedExecutor:
        """Make an executor in its first state."""
        return SimulatedExecutor(
            self.capacity,
            PaddedBatches(self.step_time) if self.in_batches else self.step_time,
            ancestry=BeamAncestry(replacement=self.replacement),
            run_ahead=self.run_ahead,
        )

    def request(self, request_id: int, timed: TimedRequest) -> Request:
        """Make a request that ends by nothing but its length."""
        prompt = self._prompt(request_id, timed.input_len)
        return length_request(request_id, timed, prompt, n=self.n, beam_width=self.beam_width)

    def _prompt(self, request_id: int, input_len: int) -> IntColumn:
        if not self.shared_prefix_len:
            return int32([PROMPT_TOKEN]) * input_len
        own_len = max(0, input_len - self.shared_prefix_len)
        own = int32([OUTPUT_TOKEN + 1 + request_id]) * own_len
        return int32([PROMPT_TOKEN]) * (input_len - own_len) + own


def length_request(
    request_id: int, timed: TimedRequest, prompt: IntColumn, *, n: int = 1, beam_width: int = 0
) -> Request:
    """Make a request that ends by nothing but its length.

    Args:
        n, beam_width: see `SamplingParams`.
    """
    sampling = SamplingParams(
        max_tokens=timed.output_len, seed=request_id, ignore_eos=True, n=n, beam_width=beam_width
    )
    return Request(request_id=request_id, prompt=prompt, sampling=sampling, arrival_s=timed.due_s)


class LengthKeeper(Executor, Protocol):
    """An executor that knows how long its sequences are."""

    def context_lens(self, plan: StepPlan) -> list[int]:
        """See `SimulatedExecutor.context_lens`."""
        ...


def replay(
    setup: Setup,
    schedule: Schedule,
    *,
    until_s: float = float("inf"),
    executor: LengthKeeper | None = None,
    clock: Clock | None = None,
) -> Replay:
    """Send every request at its time, until all are served or the clock reaches `until_s`.

    Args:
        executor, clock: by default the simulated ones of the setup. Requests that are still open at
            the end stay in the executor until it is closed.

    Raises:
        RequestError: if a request can never be served.
    """
    simulation = _Simulation(setup, schedule, executor or setup.executor(), clock or VirtualClock())
    samples = tuple(simulation.run(until_s))
    return Replay(tuple(simulation.served), samples)


@dataclass(frozen=True, slots=True)
class _Seen:
    """See `Sample`."""

    num_sequences: int
    num_logical_blocks: int
    usage: MemoryUsage


class _ObservedExecutor:
    """An executor that notes what the pool looks like when a plan is submitted.

    Attributes:
        seen: of the plan whose result was collected last.
    """

    def __init__(self, executor: LengthKeeper, block_manager: BlockManager) -> None:
        self.capacity = executor.capacity
        self.run_ahead = executor.run_ahead
        self.seen = _Seen(0, 0, block_manager.usage())
        self._in_flight: deque[_Seen] = deque()
        self._executor = executor
        self._block_manager = block_manager

    def submit(self, plan: StepPlan) -> None:
        self._executor.submit(plan)
        size = self.capacity.block_size
        lens = self._executor.context_lens(plan)
        self._in_flight.append(
            _Seen(
                num_sequences=len(plan.decode_rows) + len(plan.prefill_rows),
                num_logical_blocks=sum(div_ceil(length, size) for length in lens),
                usage=self._block_manager.usage(),
            )
        )

    def collect(self) -> StepResult:
        self.seen = self._in_flight.popleft()
        return self._executor.collect()

    def close(self) -> None:
        self._executor.close()


class _Simulation:
    """The loop around the engine."""

    def __init__(
        self, setup: Setup, schedule: Schedule, executor: LengthKeeper, clock: Clock
    ) -> None:
        self._setup = setup
        self._clock = clock
        block_manager = make_block_manager(setup.config, setup.capacity)
        self._executor = _ObservedExecutor(executor, block_manager)
        self._engine = Engine(setup.config, self._executor, block_manager=block_manager)
        self._log = ServedLog[Served]()
        self._waiting = deque(enumerate(schedule))
        self._ended: list[int] = []

    @property
    def served(self) -> Iterator[Served]:
        """All requests in the order of the schedule, whatever has become of them."""
        yield from self._log.served.values()
        yield from (Served(request=timed) for _, timed in self._waiting)

    def run(self, until_s: float) -> Iterator[Sample]:
        clock = self._clock
        while (now_s := clock.now_s()) < until_s:
            self._send(now_s)
            output = self._engine.step(now_s)
            if output is not None:
                clock.spend(output.stats.elapsed_s)
                now_s = clock.now_s()
                self._ended += self._log.take(output, now_s)
                if not self._setup.in_batches or output.stats.num_running == 0:
                    self._log.finish(self._ended, now_s)
                    self._ended = []
                seen = self._executor.seen
                yield Sample(
                    end_s=now_s,
                    num_sequences=seen.num_sequences,
                    num_logical_blocks=seen.num_logical_blocks,
                    usage=seen.usage,
                    stats=output.stats,
                )
            elif self._waiting:
                clock.skip_to(self._waiting[0][1].due_s)
            else:
                return

    def _send(self, now_s: float) -> None:
        while self._waiting and self._waiting[0][1].due_s <= now_s:
            request_id, timed = self._waiting.popleft()
            self._engine.scheduler.add(self._setup.request(request_id, timed))
            self._log.add(request_id, Served(request=timed), self._setup.n)
