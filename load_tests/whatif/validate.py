"""Command `validate`: predict what this machine will do under load, do it, and compare."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from load_tests import ROOT, report
from load_tests.options import add_config, add_lengths, at_least, positive, several
from load_tests.parallel import with_one_thread
from load_tests.simulator.speeds import Scaled
from load_tests.traffic.latencies import Served, latencies, summarise
from load_tests.traffic.lengths import parse_lengths
from load_tests.traffic.schedule import Extent, poisson
from load_tests.traffic.trace import Trace, from_schedule
from load_tests.whatif.fleet import replay_trace
from load_tests.whatif.questions import parse_changes, resolve
from load_tests.whatif.replays import Experiment

if TYPE_CHECKING:
    from load_tests.whatif.live import ExpectedStep

EXAMPLE = "python -m load_tests validate --set max_num_seqs=16 --requests 100 --loads 0.5,0.85"

# of the embedded model on a CPU, the error that is accepted in the median and the 99th percentile
# of end-to-end latency
MAX_ERROR = 0.10
CHECKED = ("E2E p50", "E2E p99")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `validate`."""
    add_config(parser)
    parser.add_argument(
        "--lengths", default="sharegpt", help="of the requests, as `whatif --synthetic` takes them"
    )
    add_lengths(parser, 384)
    parser.add_argument("--requests", type=at_least(2), default=100, help="at each load")
    parser.add_argument(
        "--loads",
        type=several(positive),
        default=[0.5, 0.85],
        metavar="L,...",
        help="rates, as shares of what all requests at once would be served at",
    )
    parser.add_argument(
        "--step-times", type=Path, metavar="FILE", help="table to use instead of calibrating first"
    )
    parser.add_argument("--repeats", type=at_least(5), default=20, help="steps per point of it")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and lengths")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate, predict and serve; 1 if a prediction is not near enough.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    with_one_thread()
    [config] = resolve(args.config, [parse_changes(args.set)])
    if config.device != "cpu":
        raise ValueError("only a CPU engine runs in this process; --set device=cpu")
    # one process has nothing to plan ahead for
    config = replace(config, run_ahead=1)
    files = report.start(args, "validate")
    table = args.step_times or _calibrate(config, args, files.path("_steps.json"))
    comparisons = compare(config, table, args)
    for comparison in comparisons:
        _show(comparison)
    is_good = all(comparison.is_good for comparison in comparisons)
    print(f"{'within' if is_good else 'NOT within'} {MAX_ERROR:.0%}")
    figures = {"settings": asdict(config), "loads": [asdict(c) for c in comparisons]}
    files.finish(figures, "; ".join(c.headline() for c in comparisons))
    return int(not is_good)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One load.

    Attributes:
        load, rate_per_s: share of the capacity, and requests per second.
        actual, predicted: seconds, by latency and percentile.
        rescaled: as predicted with steps that take as long as they did, all together: what is left
            is no fault of the step times.
        step_ratios: actual over expected seconds of steps, by kind: median, and ninth decile of the
            distance from 1.
        step_pace: actual over expected seconds of all steps together.
        probe_paces: the same of a batch right before the load, and of one right after; steps are
            predicted to take their mean, since a machine's speed may change after a calibration.
    """

    load: float
    rate_per_s: float
    actual: dict[str, float]
    predicted: dict[str, float]
    rescaled: dict[str, float]
    step_ratios: dict[str, tuple[float, float]]
    step_pace: float
    probe_paces: tuple[float, float]

    @property
    def errors(self) -> dict[str, float]:
        """Predicted over actual, less one."""
        return {name: self.predicted[name] / value - 1 for name, value in self.actual.items()}

    @property
    def is_good(self) -> bool:
        """Whether what is checked is near enough."""
        return all(abs(self.errors[name]) <= MAX_ERROR for name in CHECKED)

    def headline(self) -> str:
        """One line for the log."""
        errors = ", ".join(f"{name} {self.errors[name]:+.1%}" for name in CHECKED)
        return f"load {self.load:g}: {errors}, steps {self.step_pace - 1:+.1%}"


def compare(config: EngineConfig, table: Path, args: argparse.Namespace) -> list[Comparison]:
    """Predict and serve the same requests at each load.

    Raises:
        ValueError: if a request does not fit the settings.
    """
    # torch takes seconds to import
    from load_tests.whatif.live import LiveEngine

    # all at once; the requests are the same at every rate
    at_once = _trace(args, rate_per_s=1e9)
    finished_s = [_finish_s(served) for served in _predict(config, table, at_once)]
    engine = LiveEngine(config, _experiment(table, at_once).speed(config).step_time)
    probe = Trace(requests=at_once.requests[: config.max_num_seqs])
    comparisons = []
    try:
        pace = _pace(engine.serve(probe).steps)
        capacity = args.requests / (max(finished_s) * pace)
        for load in args.loads:
            trace = _trace(args, load * capacity)
            print(f"load {load:g}: {trace.duration_s:.0f} s of arrivals", flush=True)
            live = engine.serve(trace)
            paces = pace, _pace(engine.serve(probe).steps)
            step_pace = _pace(live.steps)
            comparisons.append(
                Comparison(
                    load=load,
                    rate_per_s=load * capacity,
                    actual=percentiles(live.served),
                    predicted=percentiles(_predict(config, table, trace, pace=fmean(paces))),
                    rescaled=percentiles(_predict(config, table, trace, pace=step_pace)),
                    step_ratios=_step_ratios(live.steps),
                    step_pace=step_pace,
                    probe_paces=paces,
                )
            )
            pace = paces[1]
    finally:
        engine.close()
    return comparisons


def _trace(args: argparse.Namespace, rate_per_s: float) -> Trace:
    lengths = parse_lengths(args.lengths, args.max_total_len)
    return from_schedule(
        poisson(rate_per_s, lengths, Extent(num_requests=args.requests), args.seed)
    )


def _experiment(table: Path, trace: Trace) -> Experiment:
    return Experiment(trace=trace, step_times=str(table))


def _predict(
    config: EngineConfig, table: Path, trace: Trace, *, pace: float = 1.0
) -> tuple[Served, ...]:
    replica = _experiment(table, trace).replica(config)
    return replay_trace(replace(replica, step_time=Scaled(replica.step_time, pace)), trace).served


def percentiles(served: Sequence[Served]) -> dict[str, float]:
    """Percentiles of each latency in seconds; every request was served."""
    assert all(request.finish_s is not None for request in served)
    summaries = {
        name.removesuffix("_s").upper(): summarise(values)
        for name, values in latencies(served).items()
    }
    return {
        f"{name} {number}": getattr(summary, number)
        for name, summary in summaries.items()
        if summary is not None
        for number in ("p50", "p90", "p99")
    }


def _finish_s(served: Served) -> float:
    if served.finish_s is None:
        raise ValueError("not every request fits these settings; lower --max-total-len")
    return served.finish_s


def _step_ratios(steps: "Sequence[ExpectedStep]") -> dict[str, tuple[float, float]]:
    kinds = {"decode only": False, "with prompts": True}
    return {kind: _ratios(steps, has_prompts=has) for kind, has in kinds.items()}


def _ratios(steps: "Sequence[ExpectedStep]", *, has_prompts: bool) -> tuple[float, float]:
    """Median of actual over expected, and ninth decile of its distance from 1."""
    ratios = [s.actual_s / s.expected_s for s in steps if s.has_prompts is has_prompts]
    if len(ratios) < 2:
        return 1.0, 0.0
    return median(ratios), quantiles([abs(ratio - 1) for ratio in ratios], n=10)[-1]


def _pace(steps: "Sequence[ExpectedStep]") -> float:
    """Actual over expected seconds of all steps together."""
    return sum(step.actual_s for step in steps) / sum(step.expected_s for step in steps)


def _calibrate(config: EngineConfig, args: argparse.Namespace, table: Path) -> Path:
    """Measure a table that covers every step of the requests, in a process of its own."""
    words = calibration(config, args.max_total_len)
    command = [sys.executable, "-m", "load_tests", "calibrate", "--table", str(table)]
    options = [*words, "--repeats", str(args.repeats)]
    done = subprocess.run([*command, *options], check=False, cwd=ROOT)
    if done.returncode:
        raise ValueError("the calibration failed")
    return table


def calibration(config: EngineConfig, max_total_len: int) -> list[str]:
    """Options of `calibrate` whose table knows every step of an engine."""
    largest_step = max(config.scheduler.max_step_tokens, 2 * config.max_num_seqs)
    axes = {
        "--batches": _axis(1, 2, config.max_num_seqs),
        "--contexts": _axis(32, 4, max_total_len),
        "--prompt-lens": _axis(4, 2, largest_step),
    }
    words = ["--model", config.model_path, "--dtype", config.dtype]
    return words + [word for name, axis in axes.items() for word in (name, axis)]


def _axis(start: int, factor: int, end: int) -> str:
    """Numbers that grow by a factor, and the end."""
    numbers = []
    while start < end:
        numbers.append(start)
        start *= factor
    return ",".join(map(str, [*numbers, end]))


def _show(comparison: Comparison) -> None:
    rows = [
        (
            name,
            f"{actual:.4g}",
            f"{comparison.predicted[name]:.4g}",
            f"{comparison.errors[name]:+.1%}",
            f"{comparison.rescaled[name] / actual - 1:+.1%}",
        )
        for name, actual in comparison.actual.items()
    ]
    title = f"Load {comparison.load:g}: {comparison.rate_per_s:.3g} requests per second"
    report.print_table(
        title, ("", "actual (s)", "predicted (s)", "error", "error, steps rescaled"), rows
    )
    for kind, (middle, deviation) in comparison.step_ratios.items():
        print(f"steps {kind}: {middle:.3f} of the expected time, 90 % within {deviation:.1%}")
    print(f"all steps together: {comparison.step_pace:.3f}")
    before, after = comparison.probe_paces
    print(f"steps of a batch before and after: {before:.3f} and {after:.3f}; predicted with these")
