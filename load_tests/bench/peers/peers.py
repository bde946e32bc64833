"""Command `all_beside`: the measures of `offline`, `online` and `beam` in one go."""

import argparse
from collections.abc import Sequence

from load_tests.bench.in_process import beam, beside, offline, online
from load_tests.bench.peers.measures import Beam, Measure, Online
from load_tests.bench.peers.race import Column
from load_tests.options import several

EXAMPLE = "python -m load_tests peers --model llama3-8b --device cuda --peer vllm"

# batches first: a peer may need another process for arrivals
_COMMANDS = {"offline": offline, "beam": beam, "online": online}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of all three commands."""
    for command in _COMMANDS.values():
        command.add_measures(parser)
    parser.add_argument(
        "--only", type=several(str), default=list(_COMMANDS), help="commands to run, NAME,..."
    )
    beside.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure all sides."""
    if unknown := set(args.only) - _COMMANDS.keys():
        raise ValueError(f"--only names {unknown}, not among {', '.join(_COMMANDS)}")
    chosen = [command for name, command in _COMMANDS.items() if name in args.only]
    measures = [measure for command in chosen for measure in command.measures(args)]
    return beside.run(args, "peers", measures, _columns)


def _columns(measure: Measure) -> Sequence[Column]:
    if isinstance(measure, Online):
        return online.columns(measure)
    return beam.columns(measure) if isinstance(measure, Beam) else offline.columns(measure)
