"""Command `figure2`: how much of the KV memory holds tokens, and how many sequences fit for it.

The paged batches of figure 13 come out too large with the lengths that are shipped, because input
and output are drawn each by itself while their ranks correlate in the data (+0.21 ShareGPT, -0.25
Alpaca): 32.2 to 35.0 and 146 to 155 sequences over three seeds, against 31.8 to 32.8 and 125 to 139
with the recorded pairs (options --sharegpt and --alpaca), which is within 10 % of the paper's.
"""

import argparse
from dataclasses import dataclass
from statistics import fmean

from engine.config import MemoryPolicy, SchedulerConfig
from engine.executor.step_time import A100_OPT_13B
from engine.types import Capacity
from load_tests import report
from load_tests.options import at_least, positive
from load_tests.simulation import Replay, Sample, Setup, replay
from load_tests.traffic.lengths import parse_lengths
from load_tests.traffic.schedule import Extent, digest, poisson

EXAMPLE = "python -m load_tests figure2 --duration-s 900 --window-from-s 300"

SYSTEMS: dict[str, MemoryPolicy] = {
    "paged": "paged",
    "Orca (Oracle)": "reserved_oracle",
    "Orca (Pow2)": "reserved_pow2",
    "Orca (Max)": "reserved_max",
}
USES = ("filled", "reserved", "internal", "external", "free")

# OPT-13B on one A100 40 GB leaves room for 15.7K tokens (paper, table 1)
CAPACITY = Capacity(num_blocks=981, block_size=16, num_rows=256)
MAX_MODEL_LEN = 2048
MAX_NUM_BATCHED_TOKENS = 2560


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One of the paper's measurements with its results, in the order of `SYSTEMS`.

    Attributes:
        lengths: data set.
        rate_per_s: Poisson arrivals.
        counts_sequences: whether the figure is a batch size, otherwise a share of slots in percent.
        paper: read from the printed figures, two of the shares from the text.
    """

    title: str
    lengths: str
    rate_per_s: float
    counts_sequences: bool
    paper: tuple[float, ...]

    def figure(self, window: tuple[Sample, ...]) -> float:
        """Measure what the paper measured, as a mean over steps."""
        if self.counts_sequences:
            return fmean(step.num_sequences for step in window)
        return share(window, "filled")

    def agrees(self, ours: float, paper: float) -> bool:
        """Whether batch sizes are within 10 %, or shares within 3 points."""
        allowed = 0.1 * paper if self.counts_sequences else 3.0
        return abs(ours - paper) <= allowed


EXPERIMENTS = {
    "2": Experiment(
        title="Slots that hold a token, in % (figure 2)",
        lengths="sharegpt",
        rate_per_s=4.0,
        counts_sequences=False,
        paper=(96.3, 38.2, 26.8, 20.4),
    ),
    "13a": Experiment(
        title="Sequences in the batch, ShareGPT (figure 13a)",
        lengths="sharegpt",
        rate_per_s=2.0,
        counts_sequences=True,
        paper=(30.42, 13.62, 9.81, 7.00),
    ),
    "13b": Experiment(
        title="Sequences in the batch, Alpaca (figure 13b)",
        lengths="alpaca",
        rate_per_s=30.0,
        counts_sequences=True,
        paper=(132.44, 72.75, 43.24, 7.00),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One system in one experiment.

    Attributes:
        shares: percent of slots by use, in the order of `USES`.
        num_recomputed: preemptions until the end.
    """

    system: str
    ours: float
    paper: float
    agrees: bool
    shares: tuple[float, ...]
    num_recomputed: int
    num_served: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `figure2`."""
    parser.add_argument("--only", choices=EXPERIMENTS, help="one of the figures")
    parser.add_argument("--duration-s", type=positive, default=900.0, help="of the arrivals")
    parser.add_argument(
        "--window-from-s", type=positive, default=300.0, help="steps before this do not count"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="of arrivals and lengths")
    for name in ("sharegpt", "alpaca"):
        parser.add_argument(
            f"--{name}",
            default=name,
            metavar="FILE",
            help="CSV or JSONL file with length pairs; by default input and output are drawn each "
            "by itself from the quantiles of the data set",
        )
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate every system, print and write the figures; 1 if one is out of its bounds.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    if args.window_from_s >= args.duration_s:
        raise ValueError(f"a window from {args.window_from_s:g} s on is behind the end")
    files = report.start(args, "figure2")
    names = [args.only] if args.only else list(EXPERIMENTS)
    findings = {name: measure(EXPERIMENTS[name], args) for name in names}
    for name, found in findings.items():
        _show(EXPERIMENTS[name], found)
    figures: dict[str, object] = {
        name: [_as_json(finding) for finding in found] for name, found in findings.items()
    }
    files.write(figures)
    if args.log:
        files.log(", ".join(_headline(name, found) for name, found in findings.items()))
    return int(not all(finding.agrees for found in findings.values() for finding in found))


def measure(experiment: Experiment, args: argparse.Namespace) -> list[Finding]:
    """Simulate all systems on the same arrivals and lengths.

    Args:
        args: lengths by data set, seed, duration_s and window_from_s.
    """
    lengths = parse_lengths(getattr(args, experiment.lengths), MAX_MODEL_LEN)
    extent = Extent(duration_s=args.duration_s)
    schedule = poisson(experiment.rate_per_s, lengths, extent, args.seed)
    print(f"{experiment.title}: {len(schedule)} requests, schedule {digest(schedule)[:12]}")
    findings = []
    for (system, policy), paper in zip(SYSTEMS.items(), experiment.paper, strict=True):
        done = replay(setup(policy), schedule, until_s=args.duration_s)
        window = done.window(args.window_from_s, args.duration_s)
        findings.append(_finding(experiment, system, paper, done, window))
    return findings


def setup(policy: MemoryPolicy) -> Setup:
    """The paper's model and card with one of the systems.

    The paper's system finds no prefix by itself, and all simulated prompts are alike.
    """
    config = SchedulerConfig(
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        memory_policy=policy,
        prefix_cache=False,
    )
    return Setup(config=config, capacity=CAPACITY, step_time=A100_OPT_13B)


def share(window: tuple[Sample, ...], use: str) -> float:
    """Mean share of the slots that have a use of `MemoryUsage`, in percent."""
    return 100 * fmean(getattr(step.usage, use) / step.usage.total for step in window)


def _finding(
    experiment: Experiment, system: str, paper: float, done: Replay, window: tuple[Sample, ...]
) -> Finding:
    ours = experiment.figure(window)
    return Finding(
        system=system,
        ours=ours,
        paper=paper,
        agrees=experiment.agrees(ours, paper),
        shares=tuple(share(window, use) for use in USES),
        num_recomputed=window[-1].stats.num_recomputed,
        num_served=sum(served.finish_s is not None for served in done.requests),
    )


def _show(experiment: Experiment, findings: list[Finding]) -> None:
    columns = ("system", "ours", "paper", "agrees", *(f"{use} %" for use in USES))
    rows = [
        (
            finding.system,
            f"{finding.ours:.1f}",
            f"{finding.paper:.1f}",
            "yes" if finding.agrees else "NO",
            *(f"{value:.1f}" for value in finding.shares),
            str(finding.num_recomputed),
            str(finding.num_served),
        )
        for finding in findings
    ]
    report.print_table(experiment.title, (*columns, "recomputed", "served"), rows)


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "system": finding.system,
        "ours": finding.ours,
        "paper": finding.paper,
        "agrees": finding.agrees,
        "shares_percent": dict(zip(USES, finding.shares, strict=True)),
        "num_recomputed": finding.num_recomputed,
        "num_served": finding.num_served,
    }


def _headline(name: str, findings: list[Finding]) -> str:
    values = " / ".join(f"{finding.ours:.1f}" for finding in findings)
    return f"figure {name}: {values}"
