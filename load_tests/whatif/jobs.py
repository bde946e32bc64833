"""One replay and its figures, in this process or several at a time."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from load_tests.traffic.metrics import Objective, percentile
from load_tests.whatif.figures import Figures, e2e_s, measure, tpot_s, ttft_s
from load_tests.whatif.fleet import Flown, fly
from load_tests.whatif.replica import Machine
from load_tests.whatif.trace import Trace

T = TypeVar("T")
R = TypeVar("R")
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


def run_jobs(jobs: Sequence[Job], num_processes: int) -> list[Outcome]:
    """Replay several traces, so many at a time, and return the outcomes in their order."""
    return in_processes(run_job, jobs, num_processes)


def in_processes(work: Callable[[T], R], items: Sequence[T], num_processes: int) -> list[R]:
    """Work on items, so many at a time, and return what comes out in their order."""
    if num_processes == 1 or len(items) < 2:
        return [work(item) for item in items]
    # spawned, as a fork of a process with threads may hang
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(num_processes, len(items)), context) as pool:
        return list(pool.map(work, items))


def _curves(flown: Flown) -> Curves:
    done = [served for served in flown.served if not served.is_refused]
    latencies = {
        "ttft_s": [ttft_s(served) for served in done],
        "tpot_s": [value for served in done if (value := tpot_s(served)) is not None],
        "e2e_s": [e2e_s(served) for served in done],
    }
    return {name: _percentiles(values) for name, values in latencies.items() if values}


def _percentiles(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(percentile(ordered, percent) for percent in range(101))
