"""Makes the replays that a question needs, all alike but for what it turns."""

from dataclasses import dataclass

from engine.config import EngineConfig
from load_tests.http.metrics import Objective
from load_tests.simulator.speeds import Speed, read_speed
from load_tests.traffic.trace import Trace
from load_tests.whatif.jobs import Job, run_job
from load_tests.whatif.replica import Machine
from load_tests.whatif.settings import capacity
from load_tests.whatif.slo import Sizing, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all replays of a question share.

    Attributes:
        trace: that is replayed.
        step_times: name or file of the workers' speed, see `read_speed`.
        block_copy_s: seconds to copy a block to or from the swap space.
        objective: what counts as a good request.
        num_replicas: unless another number is asked for.
        seed: of routing.
    """

    trace: Trace
    step_times: str
    block_copy_s: float = 0.0
    objective: Objective
    num_replicas: int = 1
    seed: int = 0

    def speed(self, config: EngineConfig) -> Speed:
        """The workers' speed, and what is to be said of it with these settings."""
        return read_speed(self.step_times, config)

    def job(
        self, config: EngineConfig, *, num_replicas: int | None = None, rate: float = 1.0
    ) -> Job:
        """Make a replay.

        Args:
            rate: factor on the trace's.
        """
        machine = Machine(
            config=config,
            capacity=capacity(config, self.block_copy_s),
            step_time=self.speed(config).step_time,
        )
        return Job(
            machine=machine,
            trace=self.trace if rate == 1.0 else self.trace.faster(rate),
            objective=self.objective,
            num_replicas=num_replicas or self.num_replicas,
            seed=self.seed,
        )

    def sizing(self, config: EngineConfig, share: float, most: int) -> Sizing:
        """Count the replicas that serve a share of the requests well, see `size`."""

        def good_share(num_replicas: int) -> float:
            return run_job(self.job(config, num_replicas=num_replicas)).figures.good_share

        return size(good_share, share, most)
