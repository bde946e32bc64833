"""Command `all_beside`: the measures of `offline`, `online` and `beam` in one go."""

import argparse
from collections.abc import Sequence

from load_tests import beam, beside, offline, online
from load_tests.beside import Column
from load_tests.sides.job import Beam, Measure, Online

EXAMPLE = "python -m load_tests all_beside --model llama3-8b --device cuda --peer vllm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of all three commands."""
    for command in (offline, beam, online):
        command.add_measures(parser)
    beside.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure all sides, batches first: a peer may need another process for arrivals."""
    measures = [m for command in (offline, beam, online) for m in command.measures(args)]
    return beside.run(args, "all_beside", measures, _columns)


def _columns(measure: Measure) -> Sequence[Column]:
    if isinstance(measure, Online):
        return online.columns(measure)
    return beam.columns(measure) if isinstance(measure, Beam) else offline.columns(measure)
