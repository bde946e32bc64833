"""Command `whatif`: a trace on other settings, with the real scheduler in virtual time."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.config import EngineConfig
from load_tests import report as reports
from load_tests.options import (
    add_config,
    add_extent,
    add_lengths,
    add_processes,
    at_least,
    not_negative,
    positive,
)
from load_tests.parallel import in_order
from load_tests.simulator.speeds import DEFAULT, shipped
from load_tests.traffic.latencies import DEFAULT_OBJECTIVE
from load_tests.traffic.lengths import DATA_SETS, MAX_TOTAL_LEN, parse_lengths
from load_tests.traffic.schedule import Extent, poisson
from load_tests.traffic.tables import TIME_UNITS_S
from load_tests.traffic.trace import Trace, from_schedule, read_traces
from load_tests.whatif.knobs import default_knobs, parse_knob
from load_tests.whatif.replays import Experiment, ReplayOutcome
from load_tests.whatif.report import Answer, show, write
from load_tests.whatif.settings import Changes, read_settings
from load_tests.whatif.slo import Sizing, parse_slo, size
from load_tests.whatif.tornado import Bar, tornado

EXAMPLE = (
    "python -m load_tests whatif --trace traces/ --set block_size=32 --slo ttft=1,tpot=0.1 "
    "--tornado"
)
FOLDER = reports.RESULTS / "whatif"
AS_CONFIGURED, WHAT_IF, TWO_CHOICES = "as configured", "what if", "by two choices"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `whatif`."""
    _add_trace(parser.add_argument_group("what comes"))
    _add_server(parser.add_argument_group("what serves it"))
    _add_questions(parser.add_argument_group("what is asked"))
    parser.add_argument("--seed", type=int, default=0, help="of drawn requests and of routing")
    add_processes(parser)
    parser.add_argument(
        "--output", type=Path, default=FOLDER, metavar="DIR", help="folder for JSON and plots"
    )


def run(args: argparse.Namespace) -> int:
    """Replay the trace as configured and as asked, show and write what comes out.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    trace = read_trace(args)
    changes = parse_changes(args.set)
    variants: dict[str, Changes] = {AS_CONFIGURED: {}} | ({WHAT_IF: changes} if changes else {})
    settings = dict(zip(variants, resolve(args.config, list(variants.values())), strict=True))
    asked = list(settings.values())[-1]
    experiment = Experiment(
        trace=trace,
        step_times=args.step_times,
        block_copy_s=args.block_copy_ms / 1e3,
        objective=args.slo or DEFAULT_OBJECTIVE,
        num_replicas=args.replicas,
        seed=args.seed,
    )
    runs = [partial(experiment.run, config) for config in settings.values()]
    if args.compare_routing:
        other = replace(experiment, routing="two_choices")
        runs.insert(0, partial(other.run, asked))
        settings = {TWO_CHOICES: asked} | settings
    outcomes = in_order(_call, runs, args.processes)
    answer = Answer(
        experiment=experiment,
        source=[path.name for path in args.trace] if args.trace else [args.synthetic],
        changes=changes,
        settings=settings,
        outcomes=dict(zip(settings, outcomes, strict=True)),
        share=args.slo_share,
        sizings={
            name: _sizing(experiment, config, args)
            for name, config in settings.items()
            if args.slo and name != TWO_CHOICES
        },
        bars=_bars(args, experiment, changes, asked),
    )
    show(answer)
    print(f"everything is in {write(args.output, answer)}")
    return 0


def read_trace(args: argparse.Namespace) -> Trace:
    """Read or draw the requests before anything is simulated.

    Raises:
        ValueError: if a file cannot be used or there is no request.
    """
    extent = Extent(duration_s=args.duration_s, num_requests=args.requests)
    if args.trace:
        trace = read_traces(args.trace, extent, TIME_UNITS_S[args.time_unit])
    else:
        if args.duration_s is None and args.requests is None:
            extent = Extent(duration_s=60.0)
        lengths = parse_lengths(args.synthetic, args.max_total_len)
        trace = from_schedule(poisson(args.rate, lengths, extent, args.seed))
    return trace if args.faster == 1.0 else trace.faster(args.faster)


def parse_changes(words: Sequence[str]) -> Changes:
    """Read `NAME=VALUE` words.

    Raises:
        ValueError: if one is something else.
    """
    changes = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--set {word!r} is not NAME=VALUE")
        changes[name] = value
    return changes


def resolve(file: Path, variants: Sequence[Changes]) -> list[EngineConfig]:
    """Resolve settings, all of which must be good.

    Raises:
        ValueError: naming what is not.
    """
    settings = []
    for found in read_settings(file, variants):
        if isinstance(found, str):
            raise ValueError(found)
        settings.append(found)
    return settings


def _add_trace(group: "argparse._ArgumentGroup") -> None:
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace",
        nargs="+",
        type=Path,
        help="files or folders: of our recorder, Mooncake's or Azure's, or with timestamp, "
        "input_length and output_length",
    )
    source.add_argument(
        "--synthetic",
        metavar="LENGTHS",
        help=f"Poisson arrivals: fixed:INPUT:OUTPUT, {', '.join(DATA_SETS)} or a file of lengths",
    )
    group.add_argument("--rate", type=positive, default=1.0, help="of synthetic ones per second")
    add_lengths(group, MAX_TOTAL_LEN)
    group.add_argument("--faster", type=positive, default=1.0, help="divide all times by this")
    add_extent(group, ", before --faster")
    group.add_argument(
        "--time-unit", choices=TIME_UNITS_S, default="s", help="of stamps in other formats"
    )


def _add_server(group: "argparse._ArgumentGroup") -> None:
    add_config(group)
    group.add_argument("--replicas", type=at_least(1), default=1, help="engine replicas")
    group.add_argument(
        "--compare-routing",
        action="store_true",
        help="also route to the less loaded of two random replicas, whatever they have cached",
    )
    group.add_argument(
        "--step-times",
        default=DEFAULT,
        metavar="NAME",
        help=f"table that `calibrate` wrote, or one of {', '.join(shipped())}",
    )
    group.add_argument(
        "--block-copy-ms",
        type=not_negative,
        default=0.0,
        help="to copy a block to or from the swap space, by which groups are swapped or recomputed",
    )


def _add_questions(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--slo", type=parse_slo, metavar="ttft=S,tpot=S", help="count replicas that keep this"
    )
    group.add_argument(
        "--slo-share", type=positive, default=0.99, help="of the requests that are to keep it"
    )
    group.add_argument(
        "--max-replicas", type=at_least(1), default=64, help="that are tried for the level"
    )
    group.add_argument(
        "--tornado",
        nargs="*",
        type=parse_knob,
        metavar="NAME=LOW:HIGH",
        help="turn these options down and up, one by one; without names those that mostly matter",
    )


def _call(run: Callable[[], ReplayOutcome]) -> ReplayOutcome:
    return run()


def _sizing(experiment: Experiment, config: EngineConfig, args: argparse.Namespace) -> Sizing:
    def good_share(num_replicas: int) -> float:
        return experiment.run(config, num_replicas=num_replicas).figures.good_share

    return size(good_share, args.slo_share, args.max_replicas)


def _bars(
    args: argparse.Namespace, experiment: Experiment, changes: Changes, asked: EngineConfig
) -> list[Bar]:
    if args.tornado is None:
        return []
    knobs = args.tornado or default_knobs(asked, args.replicas)
    return tornado(
        experiment, args.config, knobs, changes=changes, base=asked, num_processes=args.processes
    )
