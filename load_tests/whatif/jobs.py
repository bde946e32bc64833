"""One replay and its figures."""

from dataclasses import dataclass

import numpy

from load_tests.http.metrics import Objective
from load_tests.traffic.trace import Trace
from load_tests.whatif.figures import Figures, measure
from load_tests.whatif.fleet import Flown, fly
from load_tests.whatif.replica import Machine

Curves = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is replayed on what.

    Attributes:
        objective: what counts as a good request.
        seed: of the router.
    """

    machine: Machine
    trace: Trace
    objective: Objective
    num_replicas: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures, and each latency at the percentiles 0 to 100 for plots."""

    figures: Figures
    curves: Curves


def run_job(job: Job) -> Outcome:
    """Replay a trace.

    Raises:
        ConfigError: if a step lies beyond what is known of the workers.
    """
    flown = fly(job.machine, job.trace, num_replicas=job.num_replicas, seed=job.seed)
    return Outcome(measure(flown, job.objective), _curves(flown))


def _curves(flown: Flown) -> Curves:
    done = [served for served in flown.served if not served.is_refused]
    latencies = {
        "ttft_s": [served.ttft_s for served in done],
        "tpot_s": [value for served in done if (value := served.tpot_s) is not None],
        "e2e_s": [served.e2e_s for served in done],
    }
    return {
        name: tuple(numpy.percentile(values, range(101)).tolist())
        for name, values in latencies.items()
        if values
    }
