"""Replays of a trace and their figures: rates, latencies, preemptions, what the memory was for."""

from dataclasses import dataclass

import numpy

from engine.config import EngineConfig
from load_tests.simulator.speeds import WorkerSpeed, read_speed
from load_tests.traffic.latencies import DEFAULT_OBJECTIVE, Objective, Summary, latencies, summarise
from load_tests.traffic.trace import Trace
from load_tests.whatif.fleet import ReplayedTrace, Routing, replay_trace
from load_tests.whatif.replica import USES, ReplicaSetup
from load_tests.whatif.settings import capacity

Curves = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a replay gave; latencies are None when nothing was served.

    Attributes:
        num_requests, num_refused: of the trace; those refused are in no latency.
        makespan_s: start to the last token.
        requests_per_s, output_tokens_per_s: served, over the makespan.
        ttft_s, tpot_s, e2e_s: see `Served`.
        num_recomputed, num_swapped_out: preemptions of groups, by how they come back.
        mean_batch: sequences that got a token in a step, mean over time with steps.
        busy_share: time with steps, mean over replicas.
        uses: percent of the KV slots by use, mean over time with steps; they sum to 100.
        shared_saving: percent of the slots that sharing saved, of those that would be filled.
        cached_share: percent of the prompt tokens that were found in the cache.
        good_share: share of all requests that were served within the objective.
    """

    num_requests: int
    num_refused: int
    makespan_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: Summary | None
    tpot_s: Summary | None
    e2e_s: Summary | None
    num_recomputed: int
    num_swapped_out: int
    mean_batch: float
    busy_share: float
    uses: dict[str, float]
    shared_saving: float
    cached_share: float
    good_share: float


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """Figures, and each latency at the percentiles 0 to 100 for plots."""

    figures: Figures
    curves: Curves


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What all replays of a question share.

    Attributes:
        trace: that is replayed.
        step_times: name or file of the workers' speed, see `read_speed`.
        block_copy_s: seconds to copy a block to or from the swap space.
        objective: what counts as a good request.
        num_replicas: unless another number is asked for.
        seed: of routing.
        routing: see `replay_trace`.
    """

    trace: Trace
    step_times: str
    block_copy_s: float = 0.0
    objective: Objective = DEFAULT_OBJECTIVE
    num_replicas: int = 1
    seed: int = 0
    routing: Routing = "prefix"

    def speed(self, config: EngineConfig) -> WorkerSpeed:
        """The workers' speed, and notes about it for these settings."""
        return read_speed(self.step_times, config)

    def replica(self, config: EngineConfig) -> ReplicaSetup:
        """Set up a replica."""
        step_time = self.speed(config).step_time
        return ReplicaSetup(
            config=config, capacity=capacity(config, self.block_copy_s), step_time=step_time
        )

    def run(
        self, config: EngineConfig, *, num_replicas: int | None = None, rate: float = 1.0
    ) -> ReplayOutcome:
        """Replay the trace.

        Args:
            rate: factor on the trace's.

        Raises:
            ConfigError: if a step lies beyond what is known of the workers.
        """
        trace = self.trace if rate == 1.0 else self.trace.faster(rate)
        count = num_replicas or self.num_replicas
        replayed = replay_trace(
            self.replica(config), trace, num_replicas=count, seed=self.seed, routing=self.routing
        )
        done = latencies(replayed.done)
        curves = {
            name: tuple(numpy.percentile(values, range(101)).tolist())
            for name, values in done.items()
            if values
        }
        return ReplayOutcome(measure(replayed, self.objective), curves)


def measure(replayed: ReplayedTrace, objective: Objective) -> Figures:
    """Compute every figure of a replay."""
    done, replicas = replayed.done, replayed.replicas
    makespan_s = max((served.finish_s or 0.0 for served in done), default=0.0)
    busy_s = sum(replica.busy_s for replica in replicas)
    slot_s = {use: sum(replica.slot_s[use] for replica in replicas) for use in USES}
    saved_s = sum(replica.slot_s["shared_saving"] for replica in replicas)
    num_tokens = sum(served.request.output_len * served.request.n for served in done)
    num_prompt_tokens = sum(served.request.input_len for served in done)
    summaries = {name: summarise(values) for name, values in latencies(done).items()}
    return Figures(
        num_requests=len(replayed.served),
        num_refused=len(replayed.served) - len(done),
        makespan_s=makespan_s,
        requests_per_s=_ratio(len(done), makespan_s),
        output_tokens_per_s=_ratio(num_tokens, makespan_s),
        num_recomputed=sum(replica.stats.num_recomputed for replica in replicas),
        num_swapped_out=sum(replica.stats.num_swapped_out for replica in replicas),
        mean_batch=_ratio(sum(replica.sequence_s for replica in replicas), busy_s),
        busy_share=_ratio(busy_s, makespan_s * len(replicas)),
        uses={use: 100 * _ratio(slot_s[use], sum(slot_s.values())) for use in USES},
        shared_saving=100 * _ratio(saved_s, saved_s + slot_s["filled"]),
        cached_share=100 * _ratio(sum(served.num_cached for served in done), num_prompt_tokens),
        good_share=sum(map(objective.is_kept, done)) / len(replayed.served),
        **summaries,
    )


def _ratio(number: float, of: float) -> float:
    return number / of if of > 0 else 0.0
