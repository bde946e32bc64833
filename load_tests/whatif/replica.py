"""One engine replica in virtual time: admission, scheduler and memory are those that serve."""

from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.core.engine import Engine
from engine.errors import RequestError
from engine.runtime.flow.waiting_line import WaitingLine
from engine.runtime.outputs import idle_stats
from engine.runtime.replica.admission import Admission
from engine.runtime.routing.load_meter import LoadMeter
from engine.runtime.routing.replica_load import ReplicaLoad
from engine.types import Capacity, Request, StepOutput
from load_tests.simulator.replay import Setup
from load_tests.simulator.served_log import ServedLog
from load_tests.simulator.simulated_executor import SimulatedExecutor
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import TracedRequest

# slots that sum to the pool
USES = ("filled", "reserved", "internal", "external", "cached", "pinned", "free")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetup:
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
        return Setup(
            config=self.config.scheduler,
            capacity=self.capacity,
            step_time=self.step_time,
            replacement=self.beam_replacement,
            run_ahead=self.config.run_ahead,
        ).executor()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedByReplica(Served):
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
        busy_s: seconds of all steps.
        slot_s: seconds x slots for each of `USES`, and for `shared_saving`.
        sequence_s: seconds x sequences in the batch.
        stats: after the last step.
    """

    def __init__(self, setup: ReplicaSetup) -> None:
        self.busy_s = 0.0
        self.slot_s = dict.fromkeys((*USES, "shared_saving"), 0.0)
        self.sequence_s = 0.0
        self.stats = idle_stats(setup.capacity)
        self._log = ServedLog[ServedByReplica]()
        self._engine = Engine(setup.config.scheduler, setup.executor())
        self._now_s = 0.0
        config = setup.config
        policy = config.scheduler.queue_policy
        self._line = WaitingLine(policy, config.max_num_seqs, lambda: self._now_s)
        self._admission = Admission(config, setup.capacity, self._line)
        self._meter = LoadMeter(self.stats, setup.capacity.block_size, lambda: self._now_s)

    @property
    def served(self) -> dict[int, ServedByReplica]:
        """What has become of each request, by its index."""
        return self._log.served

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and are not in the batch yet."""
        return max(0, self._log.num_open - self.stats.num_running)

    @property
    def kv_usage(self) -> float:
        """Share of the pool that is in use."""
        return self._meter.kv_usage

    def report(self) -> ReplicaLoad:
        """What the replica would report for routing."""
        return self._meter.report()

    def submit(self, index: int, traced: TracedRequest, request: Request) -> None:
        """Take a request at its arrival, or refuse it; time has advanced to it."""
        self._now_s = max(self._now_s, traced.due_s)
        try:
            self._admission.check(request, num_waiting=self.num_waiting)
            self._engine.scheduler.add(request)
        except RequestError:
            self.served[index] = ServedByReplica(request=traced, is_refused=True)
        else:
            self._log.add(index, ServedByReplica(request=traced), request.sampling.n)
            self._meter.accepted(request)
            self._line.joined(request)

    def advance(self, until_s: float) -> None:
        """Make the steps that begin before a time, as long as there is work."""
        while self._now_s < until_s and self._log.num_open:
            output = self._engine.step(self._now_s)
            assert output is not None, "an open request is always in a queue"
            self._now_s += output.stats.elapsed_s
            ended = self._log.take(output, self._now_s)
            self._log.finish(ended, self._now_s)
            self._line.observe(output, len(ended))
            self._meter.observe(output)
            self._observe(output)

    def _observe(self, output: StepOutput) -> None:
        # a column in which every count is 0 is empty
        for index, count in zip(output.request_ids, output.cached_tokens, strict=False):
            self._add(index, "num_cached", count)
        for index, count in zip(output.request_ids, output.preemptions, strict=False):
            self._add(index, "num_preemptions", count)
        self.stats = output.stats
        elapsed_s, usage = output.stats.elapsed_s, output.stats.usage
        self.busy_s += elapsed_s
        for use in self.slot_s:
            self.slot_s[use] += elapsed_s * int(getattr(usage, use))
        self.sequence_s += elapsed_s * len(output.tokens)

    def _add(self, index: int, field: str, count: int) -> None:
        if count:
            served = self.served[index]
            changes = {field: getattr(served, field) + count}
            self.served[index] = replace(served, **changes)
