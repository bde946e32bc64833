"""Command `modern`: the paper's systems on workloads of today, in virtual time."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engine.config import EngineConfig
from engine.model_config import read_model_config
from load_tests import report
from load_tests.model_folders import model_folder
from load_tests.options import add_processes, positive
from load_tests.parallel import in_order
from load_tests.simulator.speeds import H100
from load_tests.traffic.latencies import Objective
from load_tests.traffic.sources import RequestSource
from load_tests.traffic.trace import Trace
from load_tests.whatif.replays import Experiment, Figures
from load_tests.whatif.slo import parse_slo
from load_tests.whatif.workloads import Workload, workloads

EXAMPLE = "python -m load_tests modern --duration-s 30 --mooncake conversation.jsonl"
FOLDER = report.RESULTS / "modern"

# of LLaMA-3-8B on an H100 80 GB, as the worker counted them (results/step_20261128_055719.json)
NUM_BLOCKS = 27_668
SETTINGS: dict[str, dict[str, Any]] = {
    "paged, prefix cache": {},
    "paged": {"prefix_cache": False},
    "Orca (Oracle)": {"memory_policy": "reserved_oracle", "prefix_cache": False},
    "Orca (Max)": {"memory_policy": "reserved_max", "prefix_cache": False},
}
# a rate is found to this precision, from this one on, in this range
PRECISION, FIRST_RATE, LOWEST_RATE, HIGHEST_RATE = 1.06, 4.0, 1 / 16, 1024.0
# however low the rate
MIN_REQUESTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `modern`."""
    parser.add_argument("--duration-s", type=positive, default=60.0, help="of the arrivals")
    parser.add_argument(
        "--slo",
        type=parse_slo,
        metavar="ttft=S,tpot=S",
        help="limits of a good request, instead of 2 s (Mooncake: 30 s) and 0.1 s",
    )
    parser.add_argument(
        "--slo-share", type=positive, default=0.99, help="of the requests that are to be good"
    )
    for workload in workloads():
        if workload.option:
            parser.add_argument(
                f"--{workload.option}", type=Path, metavar="FILE", help="trace to replay"
            )
    parser.add_argument("--only", metavar="WORD", help="workloads whose title has this word")
    parser.add_argument("--seed", type=int, default=0, help="of requests")
    add_processes(parser)
    parser.add_argument(
        "--output", type=Path, default=FOLDER, metavar="DIR", help="folder for JSON and plot"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A workload on a system: which rate does it sustain?

    Attributes:
        duration_s: of the arrivals.
        objective: what counts as a good request.
        share: of the requests that must be good.
    """

    workload: str
    system: str
    source: RequestSource
    config: EngineConfig
    duration_s: float
    objective: Objective
    share: float
    seed: int

    def figures(self, rate_per_s: float) -> Figures:
        """Replay the workload at a rate."""
        num_requests = max(MIN_REQUESTS, round(rate_per_s * self.duration_s))
        experiment = Experiment(
            trace=Trace(requests=self.source.requests(rate_per_s, num_requests, self.seed)),
            step_times=H100,
            objective=self.objective,
            seed=self.seed,
        )
        return experiment.run(self.config).figures


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRate:
    """What a search found.

    Attributes:
        objective: what counts as good.
        rate_per_s: highest rate at which enough requests are good; 0 if there is none.
        figures: at that rate, or at the lowest that was tried.
    """

    workload: str
    system: str
    rate_per_s: float
    objective: Objective
    figures: Figures


def run(args: argparse.Namespace) -> int:
    """Search the rate that each system sustains, show and write it.

    Raises:
        ValueError: if a file cannot be used.
    """
    searches = _searches(args)
    if not searches:
        return 1
    found = in_order(sustain, searches, args.processes)
    _show(found)
    print(f"everything is in {_write(args, found)}")
    return 0


def sustain(search: Search) -> SystemRate:
    """Go up or down in twos until enough requests are just good, then halve the gap."""
    tried: dict[float, Figures] = {}

    def is_enough(rate: float) -> bool:
        tried[rate] = search.figures(rate)
        return tried[rate].good_share >= search.share

    low = high = FIRST_RATE
    if is_enough(FIRST_RATE):
        while high < HIGHEST_RATE and is_enough(high := 2 * low):
            low = high
    else:
        while low > LOWEST_RATE and not is_enough(low := high / 2):
            high = low
    while PRECISION * low < high and tried[low].good_share >= search.share:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_enough(middle) else (low, middle)
    is_good = tried[low].good_share >= search.share
    return SystemRate(
        workload=search.workload,
        system=search.system,
        objective=search.objective,
        rate_per_s=low if is_good else 0.0,
        figures=tried[low],
    )


def _searches(args: argparse.Namespace) -> list[Search]:
    files = {
        workload.option: value
        for workload in workloads()
        if workload.option and (value := getattr(args, workload.option.replace("-", "_")))
    }
    chosen = [workload for workload in workloads() if (args.only or "") in workload.title]
    if not chosen:
        titles = ", ".join(workload.title for workload in workloads())
        raise ValueError(f"--only {args.only!r} is in no title; there are {titles}")
    return [search for workload in chosen for search in _searches_of(workload, args, files)]


def _searches_of(
    workload: Workload, args: argparse.Namespace, files: Mapping[str, Path]
) -> list[Search]:
    source = workload.source(files)
    if source is None:
        print(f"left out: {workload.title}; name its trace with --{workload.option}")
        return []
    return [
        Search(
            workload=workload.title,
            system=system,
            source=source,
            config=config,
            duration_s=args.duration_s,
            objective=args.slo or workload.objective,
            share=args.slo_share,
            seed=args.seed,
        )
        for system, config in systems(workload.max_model_len).items()
    ]


def systems(max_model_len: int) -> dict[str, EngineConfig]:
    """LLaMA-3-8B on an H100 with each way to give out memory."""
    with TemporaryDirectory() as temporary:
        model = read_model_config(model_folder("llama3-8b", Path(temporary)))
    base = EngineConfig.from_options(
        model_path="",
        # as a LLaMA 3.1, whose positions are scaled
        model=replace(model, max_position=max_model_len),
        dtype="bfloat16",
        device="cuda",
        num_blocks=NUM_BLOCKS,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=max_model_len,
        max_num_waiting=1 << 20,
    )
    return {name: base.with_options(**settings) for name, settings in SETTINGS.items()}


def _by_workload(found: Sequence[SystemRate]) -> Mapping[str, dict[str, SystemRate]]:
    table: dict[str, dict[str, SystemRate]] = {}
    for each in found:
        table.setdefault(each.workload, {})[each.system] = each
    return table


def _show(found: Sequence[SystemRate]) -> None:
    title = "Requests per second within the level: LLaMA-3-8B on a modelled H100"
    rows = [
        (workload, *(f"{each.rate_per_s:.3g}" for each in by_system.values()))
        for workload, by_system in _by_workload(found).items()
    ]
    report.print_table(title, ("", *SETTINGS), rows)
    detail = [
        (
            each.workload,
            each.system,
            f"{each.figures.mean_batch:.1f}",
            f"{each.figures.uses['filled']:.1f}",
            f"{each.figures.cached_share:.1f}",
            f"{each.figures.shared_saving:.1f}",
            str(each.figures.num_recomputed + each.figures.num_swapped_out),
        )
        for each in found
    ]
    columns = ("", "system", "sequences", "filled (%)", "cached (%)", "shared (%)", "preempted")
    report.print_table("At that rate", columns, detail)


def _write(args: argparse.Namespace, found: Sequence[SystemRate]) -> Path:
    document = {
        "seed": args.seed,
        "duration_s": args.duration_s,
        "share": args.slo_share,
        "sustained": [asdict(each) | {"objective": each.objective.limits()} for each in found],
    }
    path = report.write_json(args.output / "modern.json", document)
    from load_tests.whatif.plots import plot_rates

    rates = {
        workload: {name: each.rate_per_s for name, each in by_system.items()}
        for workload, by_system in _by_workload(found).items()
    }
    plot_rates(args.output / "modern.svg", rates)
    return path
