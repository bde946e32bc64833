"""Command `online`: Poisson arrivals at given rates, served in process without HTTP."""

import argparse
from collections.abc import Sequence

from load_tests.bench.peers import race as beside
from load_tests.bench.peers.measures import Measure, Online
from load_tests.bench.peers.race import Column
from load_tests.bench.peers.system import is_modern, modern_requests
from load_tests.options import positive, several
from load_tests.traffic.lognormal import TRACES
from load_tests.traffic.sources import MAX_TOTAL_LEN, SOURCES

EXAMPLE = "python -m load_tests online --model llama3-8b --device cuda --peer vllm --rates 15,30"

_COLUMNS = (
    Column(title="ITL p99\nms", key="itl_p99_s", scale=1e3),
    Column(title="ITL p50\nms", key="itl_p50_s", scale=1e3),
    Column(title="ITL p99.9\nms", key="itl_p999_s", scale=1e3),
    Column(title="TTFT p50\nms", key="ttft_p50_s", scale=1e3),
    Column(title="TTFT p99\nms", key="ttft_p99_s", scale=1e3),
    Column(title="norm. latency\nms/token", key="normalized_latency_s", scale=1e3),
    Column(title="output\ntok/s", key="output_tokens_per_s"),
)
_CACHED = Column(title="% of prompts\ncached", key="cached_share", scale=100.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `online`."""
    add_measures(parser)
    beside.add_arguments(parser)


def add_measures(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be measured."""
    parser.add_argument(
        "--rates", type=several(positive), default=[15.0, 30.0], help="req/s, N,..."
    )
    parser.add_argument("--duration", type=positive, default=60.0, help="seconds of arrivals")
    parser.add_argument(
        "--trace",
        choices=(*TRACES, *SOURCES),
        default="sharegpt",
        help=f"like whose the lengths are; {', '.join(SOURCES)} with the prefix cache",
    )


def measures(args: argparse.Namespace) -> list[Measure]:
    """What the options ask for.

    Raises:
        ValueError: if requests are longer than `--max-model-len`.
    """
    if args.trace in SOURCES:
        _check_lengths(args)
    return [_measure(args, rate) for rate in args.rates]


def _measure(args: argparse.Namespace, rate: float) -> Online:
    return Online(trace=args.trace, rate_per_s=rate, duration_s=args.duration, seed=args.seed)


def _check_lengths(args: argparse.Namespace) -> None:
    requests = [r for rate in args.rates for r in modern_requests(_measure(args, rate))]
    longest = max(request.input_len + request.output_len for request in requests)
    if longest > args.max_model_len:
        raise ValueError(
            f"--trace {args.trace} has a request of {longest} tokens, more than --max-model-len "
            f"{args.max_model_len}: raise it, up to {MAX_TOTAL_LEN}"
        )


def columns(measure: Measure) -> Sequence[Column]:
    """Figures to show of a measure."""
    return (*_COLUMNS, _CACHED) if is_modern(measure) else _COLUMNS


def run(args: argparse.Namespace) -> int:
    """Measure all sides."""
    return beside.run(args, "online", measures(args), columns)
