"""Command `beam`: many beam searches at once, each past end tokens to a fixed length."""

import argparse
from collections.abc import Sequence

from load_tests.bench.peers import race as beside
from load_tests.bench.peers.measures import Beam, Measure
from load_tests.bench.peers.race import Column
from load_tests.options import at_least, several

EXAMPLE = "python -m load_tests beam --model llama3-8b --device cuda --peer vllm --widths 4,8"

_COLUMNS = (
    Column(title="output\ntok/s", key="output_tokens_per_s"),
    Column(title="req/s", key="requests_per_s"),
    Column(title="seconds", key="wall_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `beam`."""
    add_measures(parser)
    beside.add_arguments(parser)


def add_measures(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be measured."""
    parser.add_argument(
        "--widths", type=several(at_least(2)), default=[4, 8], help="beams of a search, N,..."
    )
    parser.add_argument("--beams", type=at_least(2), default=256, help="of all searches together")
    parser.add_argument("--input-len", type=at_least(1), default=161, help="tokens of a prompt")
    parser.add_argument("--output-len", type=at_least(1), default=64, help="tokens of an answer")


def measures(args: argparse.Namespace) -> list[Measure]:
    """What the options ask for."""
    return [
        Beam(
            width=width,
            num_prompts=max(1, args.beams // width),
            input_len=args.input_len,
            output_len=args.output_len,
            seed=args.seed,
        )
        for width in args.widths
    ]


def columns(_: Measure) -> Sequence[Column]:
    """Figures to show of a measure."""
    return _COLUMNS


def run(args: argparse.Namespace) -> int:
    """Measure all sides."""
    return beside.run(args, "beam", measures(args), columns)
