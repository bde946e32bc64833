"""Command `offline`: a thousand requests at once, and the time of decode steps."""

import argparse
from collections.abc import Sequence

from load_tests.bench.peers import race as beside
from load_tests.bench.peers.measures import Decode, Measure, Offline
from load_tests.bench.peers.race import Column
from load_tests.options import at_least, several
from load_tests.traffic.lognormal import TRACES

EXAMPLE = (
    "python -m load_tests offline --model llama3-8b --device cuda --peer vllm --decode 1,8,64,256"
)

_OFFLINE = (
    Column(title="output\ntok/s", key="output_tokens_per_s"),
    Column(title="total\ntok/s", key="total_tokens_per_s"),
    Column(title="req/s", key="requests_per_s"),
    Column(title="seconds", key="wall_s"),
)
_DECODE = (
    Column(title="ms per\nstep", key="step_s", scale=1e3),
    Column(title="prefill\ntok/s", key="prefill_tokens_per_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `offline`."""
    add_measures(parser)
    beside.add_arguments(parser)


def add_measures(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be measured."""
    parser.add_argument(
        "--traces",
        type=several(str),
        default=[*TRACES],
        help="like whose the lengths are, NAME,...",
    )
    parser.add_argument("--requests", type=at_least(1), default=1000, help="of each trace")
    parser.add_argument(
        "--decode", type=several(at_least(1)), default=[], metavar="N,...", help="batches to time"
    )
    parser.add_argument("--decode-input", type=at_least(1), default=512, help="tokens of a prompt")
    parser.add_argument("--decode-output", type=at_least(1), default=128, help="steps to average")


def measures(args: argparse.Namespace) -> list[Measure]:
    """What the options ask for."""
    offline = [
        Offline(trace=trace, num_requests=args.requests, seed=args.seed) for trace in args.traces
    ]
    decode = [
        Decode(
            batch=batch,
            input_len=args.decode_input,
            output_len=args.decode_output,
            seed=args.seed,
        )
        for batch in args.decode
    ]
    return [*offline, *decode]


def columns(measure: Measure) -> Sequence[Column]:
    """Figures to show of a measure."""
    return _DECODE if isinstance(measure, Decode) else _OFFLINE


def run(args: argparse.Namespace) -> int:
    """Measure all sides."""
    return beside.run(args, "offline", measures(args), columns)
