"""What is measured and predicted of a replica, over all of its gangs."""

from collections.abc import Callable, Iterable

from engine.config import EngineConfig
from engine.runtime.flow.waiting_line import WaitingLine
from engine.runtime.metrics.engine_metrics import EngineMetrics
from engine.runtime.metrics.live_view import LiveView
from engine.runtime.metrics.preemption_log import PreemptionLog
from engine.runtime.outputs import idle_stats
from engine.runtime.routing.load_meter import LoadMeter
from engine.types import Capacity, FinishReason, Request, StepOutput


class ReplicaMeters:
    """Hears of each request and each step of a replica, and of gangs that come and go.

    Attributes:
        stats: counts after the latest step.
        metrics: what is scraped.
        load: what is measured for routing and scaling.
        line: what waits, and for how long it will.
        live: what the live page shows.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        replica: str,
        send: Callable[[bytes], None],
        clock: Callable[[], float],
    ) -> None:
        """Begin without a gang.

        Args:
            replica: tag of the replica.
            send: to the scheduler of the gang.
            clock: seconds.
        """
        self._clock = clock
        # nothing is known of a pool yet
        self._capacity = Capacity(num_blocks=1, block_size=1, num_rows=1)
        self._preemption_log = PreemptionLog()
        self.stats = idle_stats(self._capacity)
        self.metrics = EngineMetrics(self.stats)
        self.live = LiveView(replica, send=send, open_events=self.metrics.open_events)
        self.load = LoadMeter(self.stats, self._capacity.block_size, clock)
        self.line = WaitingLine(config.scheduler.queue_policy, config.max_num_seqs, clock)

    def take_over(self, capacity: Capacity) -> None:
        """Begin anew with the pool of another gang."""
        self._preemption_log = PreemptionLog()
        self._capacity = capacity
        self.stats = idle_stats(capacity)
        self.load.restart(self.stats, capacity.block_size)
        self.metrics.take_over(self.stats)

    def lose_gang(self) -> None:
        """Note that the gang is lost, and with it all that was open."""
        self.stats = idle_stats(self._capacity)
        self.load.restart(self.stats, self._capacity.block_size)
        self.metrics.lost_gang(self.stats)
        self.live.lost_gang()
        self.line.restart()

    def accept(self, request: Request) -> None:
        """Note that a request goes to the scheduler."""
        self.load.accepted(request)
        self.live.accepted(request)
        self.line.joined(request)

    def forget(self, request_ids: Iterable[int]) -> None:
        """Note that requests are aborted whose end nobody will see."""
        for request_id in request_ids:
            self.load.forget(request_id)
            self.line.left(request_id)

    def observe(self, output: StepOutput) -> StepOutput:
        """Take in a step; returns its output, in which requests that expired have the reason.

        `line` observes it afterwards, when the number of choices that it ends is known.
        """
        now_s = self._clock()
        self.stats = output.stats
        self._preemption_log.note(output.stats, now_s)
        self.load.observe(output)
        self.metrics.observe(output, now_s)
        self.live.observe(output)
        if FinishReason.EXPIRED in output.finish_reasons:
            return self.line.explain_expired(output)
        return output
