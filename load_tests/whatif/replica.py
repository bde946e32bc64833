"""One engine replica in virtual time: admission, scheduler and memory are those that serve."""

from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.errors import RequestError
from engine.runtime.admission import Admission
from engine.runtime.columns import idle_stats
from engine.types import Capacity, FinishReason, MemoryUsage, Request, StepOutput
from load_tests.simulator import replay as simulation
from load_tests.simulator.simulated_executor import SimulatedExecutor
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.schedule import TracedRequest

# slots that sum to the pool
USES = ("filled", "reserved", "internal", "external", "cached", "pinned", "free")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is simulated.

    Attributes:
        config: of the engine.
        capacity: of its workers.
        step_time: how long they take.
        beam_replacement: see `BeamAncestry`.
    """

    config: EngineConfig
    capacity: Capacity
    step_time: StepTime
    beam_replacement: float = 0.1

    def executor(self) -> SimulatedExecutor:
        """Make an executor in its first state."""
        setup = simulation.Setup(
            config=self.config.scheduler,
            capacity=self.capacity,
            step_time=self.step_time,
            replacement=self.beam_replacement,
            run_ahead=self.config.run_ahead,
        )
        return setup.executor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(simulation.Served):
    """What became of one request.

    Attributes:
        is_refused: whether the replica did not take it.
        num_cached: tokens of its prompt that were found in the cache.
        num_preemptions: of the request as a whole.
    """

    request: TracedRequest
    is_refused: bool = False
    num_cached: int = 0
    num_preemptions: int = 0


class Replica:
    """Serves requests in the order in which they are submitted; owns its time.

    Attributes:
        served: what has become of each request, by its index.
        busy_s: seconds of all steps.
        num_steps: steps.
        slot_s: seconds x slots for each of `USES`, and for `shared_saving`.
        sequence_s: seconds x sequences in the batch.
    """

    def __init__(self, machine: Machine) -> None:
        config, capacity = machine.config, machine.capacity
        self.served: dict[int, Served] = {}
        self.busy_s = 0.0
        self.num_steps = 0
        self.slot_s = dict.fromkeys((*USES, "shared_saving"), 0.0)
        self.sequence_s = 0.0
        self._engine = Engine(config.scheduler, machine.executor())
        self._admission = Admission(config, capacity)
        self._stats = idle_stats(capacity)
        self._num_open: dict[int, int] = {}
        self._now_s = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and are not in the batch yet."""
        return max(0, len(self._num_open) - self._stats.num_running)

    @property
    def kv_usage(self) -> float:
        """Share of the pool that is in use."""
        usage = self._stats.usage
        return 1.0 - (usage.free + usage.cached) / usage.total

    @property
    def num_preemptions(self) -> tuple[int, int]:
        """Groups that were recomputed and that were swapped out."""
        return self._stats.num_recomputed, self._stats.num_swapped_out

    def submit(self, index: int, traced: TracedRequest, request: Request) -> None:
        """Take a request at its arrival, or refuse it; time has advanced to it."""
        self._now_s = max(self._now_s, traced.due_s)
        self.served[index] = Served(request=traced)
        try:
            self._admission.check(request, num_waiting=self.num_waiting, now_s=self._now_s)
            self._engine.add(request)
        except RequestError:
            self.served[index] = Served(request=traced, is_refused=True)
        else:
            self._num_open[index] = request.sampling.n

    def advance(self, until_s: float) -> None:
        """Make the steps that begin before a time, as long as there is work."""
        while self._now_s < until_s and self._num_open:
            output = self._engine.step(self._now_s)
            assert output is not None, "an open request is always in a queue"
            self._now_s += output.stats.elapsed_s
            self._take_news(output)
            self._observe(output)

    def _take_news(self, output: StepOutput) -> None:
        served = self.served
        # columns that tell nothing are empty
        for row, count in enumerate(output.cached_tokens):
            index = output.request_ids[row]
            served[index] = replace(served[index], num_cached=served[index].num_cached + count)
        for row, count in enumerate(output.preemptions):
            index = output.request_ids[row]
            total = served[index].num_preemptions + count
            served[index] = replace(served[index], num_preemptions=total)
        self._stats = output.stats
        for index, reason in zip(output.request_ids, output.finish_reasons, strict=True):
            if served[index].first_token_s is None:
                served[index] = replace(served[index], first_token_s=self._now_s)
            if reason != FinishReason.NONE:
                self._end_choice(index)

    def _end_choice(self, index: int) -> None:
        self._num_open[index] -= 1
        if not self._num_open[index]:
            del self._num_open[index]
            self.served[index] = replace(self.served[index], finish_s=self._now_s)

    def _observe(self, output: StepOutput) -> None:
        elapsed_s, usage = output.stats.elapsed_s, output.stats.usage
        self.num_steps += 1
        self.busy_s += elapsed_s
        for use in self.slot_s:
            self.slot_s[use] += elapsed_s * _slots(usage, use)
        self.sequence_s += elapsed_s * len(output.tokens)


def _slots(usage: MemoryUsage, use: str) -> int:
    slots: int = getattr(usage, use)
    return slots
