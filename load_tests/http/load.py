"""Command `http`: which requests are sent to which server, and when.

An open loop sends each request at its time, whatever the server does; a closed loop is for smoke
tests.
"""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from load_tests import report as reports
from load_tests.options import (
    add_extent,
    add_lengths,
    at_least,
    not_negative,
    positive,
    several,
)
from load_tests.traffic.lengths import DATA_SETS, MAX_TOTAL_LEN, parse_lengths
from load_tests.traffic.schedule import Extent, at_once, poisson
from load_tests.traffic.tables import TIME_UNITS_S
from load_tests.traffic.trace import read_traces

if TYPE_CHECKING:
    from load_tests.http.session import Case

EXAMPLE = "python -m load_tests http --rate 1,2,4 --lengths sharegpt --duration-s 60 --seed 0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `http`."""
    server = parser.add_argument_group("server")
    server.add_argument("--url", default="http://127.0.0.1:8000", help="base without /v1")
    server.add_argument("--model", help="name to ask for (default: the first of /v1/models)")
    server.add_argument("--api-key", default="", help="bearer token")
    _add_arrivals(parser.add_argument_group("arrivals"))
    _add_requests(parser.add_argument_group("requests"))
    extent = parser.add_argument_group("extent")
    add_extent(extent, " (60 without --requests)")
    extent.add_argument(
        "--warmup", type=at_least(0), default=8, help="requests of 8 in, 32 out beforehand"
    )
    extent.add_argument(
        "--drain-s",
        type=not_negative,
        default=60.0,
        help="wait this long after the last arrival; then open requests are cut off and counted",
    )
    objective = parser.add_argument_group("service level")
    objective.add_argument("--slo-ttft-s", type=positive, default=1.0, help="to the first token")
    objective.add_argument("--slo-tpot-s", type=positive, default=0.05, help="per further token")
    reports.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Send every case, print and write the figures; 1 if a run is invalid."""
    cases = plan(args)
    # the heavy imports wait until the command line was found good
    from load_tests.http import report
    from load_tests.http.session import LoadSettings, drive
    from load_tests.traffic.latencies import Objective

    settings = LoadSettings(
        url=args.url.rstrip("/"),
        model=args.model or "",
        api_key=args.api_key,
        vocab_size=args.vocab_size,
        seed=args.seed,
        warmup=args.warmup,
        drain_s=args.drain_s,
        objective=Objective(ttft_s=args.slo_ttft_s, tpot_s=args.slo_tpot_s),
    )
    files = reports.start(args, "http")
    results = asyncio.run(drive(settings, cases))
    report.show(results)
    report.write(files, settings, results)
    return int(any(result.figures.invalid for result in results))


def plan(args: argparse.Namespace) -> "list[Case]":
    """Draw or read the schedules before anything is sent.

    Raises:
        ValueError: if an option or a file cannot be used.
    """
    from load_tests.http.session import Case

    duration_s = args.duration_s if args.duration_s or args.requests or args.trace else 60.0
    extent = Extent(duration_s=duration_s, num_requests=args.requests)
    if args.trace:
        trace = read_traces([args.trace], extent, TIME_UNITS_S[args.time_unit])
        return [Case(label=args.trace.name, schedule=trace.requests)]
    lengths = parse_lengths(args.lengths, args.max_total_len)
    if args.rate:
        return [
            Case(
                label=f"{rate:g} req/s",
                schedule=poisson(rate, lengths, extent, args.seed),
                rate_per_s=rate,
            )
            for rate in args.rate
        ]
    return [
        Case(
            label=f"closed loop, {number} in flight",
            schedule=at_once(lengths, args.requests or 4 * number, args.seed),
            concurrency=number,
        )
        for number in args.concurrency
    ]


def _add_arrivals(group: "argparse._ArgumentGroup") -> None:
    group = group.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--rate",
        type=several(positive),
        metavar="R,...",
        help="Poisson arrivals per second, one run for each",
    )
    group.add_argument(
        "--trace", type=Path, help="file or folder, in the formats that `whatif --trace` takes"
    )
    group.add_argument(
        "--concurrency",
        type=several(at_least(1)),
        metavar="N,...",
        help="closed loop, N requests in flight: hides queueing, for smoke tests and capacity only",
    )


def _add_requests(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--lengths",
        default="fixed:128:64",
        help=f"fixed:INPUT:OUTPUT, {', '.join(DATA_SETS)} or a file of lengths",
    )
    add_lengths(group, MAX_TOTAL_LEN)
    group.add_argument(
        "--vocab-size", type=at_least(1), default=32000, help="prompt ids are below this"
    )
    group.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and prompts")
    group.add_argument(
        "--time-unit", choices=TIME_UNITS_S, default="s", help="of the trace's stamps"
    )
