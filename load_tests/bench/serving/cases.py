"""What a race sends: arrivals at a rate, and so many requests in flight."""

import argparse

from load_tests.http.load import plan
from load_tests.http.session import Case
from load_tests.options import at_least, not_negative, positive, several
from load_tests.traffic.lengths import parse_lengths
from load_tests.traffic.schedule import at_once

NO_RATE = "none"


def add_load(group: "argparse._ArgumentGroup") -> None:
    """Declare the options of the load."""
    group.add_argument(
        "--rate",
        type=_rates,
        default=[15.0, 30.0],
        help=f"Poisson arrivals per second, or {NO_RATE}",
    )
    group.add_argument(
        "--concurrency", type=several(at_least(1)), default=[256, 512], help="requests in flight"
    )
    group.add_argument("--passes", type=at_least(1), default=3, help="of each case on each server")
    group.add_argument(
        "--peer-passes",
        type=at_least(1),
        default=None,
        metavar="N",
        help="on the peer, if fewer: with 2 and 1 ours is loaded before and after it",
    )
    group.add_argument("--duration-s", type=positive, default=15.0, help="arrivals of a rate")
    group.add_argument(
        "--turnover",
        type=several(at_least(1)),
        default=[3],
        help="requests of a case per one in flight; one number, or one for each case",
    )
    group.add_argument("--lengths", default="sharegpt", help="see the command http")
    group.add_argument("--max-total-len", type=at_least(64), default=2048, help="of a request")
    group.add_argument("--drain-s", type=not_negative, default=60.0, help="after the last arrival")
    group.add_argument("--vocab-size", type=at_least(1), default=30000, help="ids are below it")
    group.add_argument("--seed", type=int, default=0, help="of lengths and prompts")
    group.add_argument(
        "--warm-up", type=at_least(1), default=48, help="requests at once, before any is measured"
    )


def cases_of(args: argparse.Namespace) -> list[Case]:
    """The cases of both loops, as the command `http` makes them.

    Raises:
        ValueError: if there are some turnovers, but not one for each number in flight.
    """
    common = vars(args) | {"trace": None, "time_unit": "s"}
    open_loop = common | {"requests": None, "concurrency": None}
    cases = plan(argparse.Namespace(**open_loop)) if args.rate else []
    for number, turnover in zip(args.concurrency, _turnovers(args), strict=True):
        closed = {"rate": None, "requests": turnover * number, "concurrency": [number]}
        cases += plan(argparse.Namespace(**(common | closed)))
    return cases


def warm_up(args: argparse.Namespace) -> Case:
    """Requests like those of the cases, before any is measured: kernels may still be compiled."""
    lengths = parse_lengths(args.lengths, args.max_total_len)
    schedule = at_once(lengths, args.warm_up, args.seed + 1)
    return Case(label="warm-up", schedule=schedule, concurrency=args.warm_up)


def order_of(num_servers: int, number: int, peer_passes: int | None) -> list[int]:
    """Which servers are loaded in a pass, ours being 0.

    The one that begins changes, so that what the other leaves behind counts for both.

    Args:
        number: of the pass.
        peer_passes: how many all others have; None for each.
    """
    are_there = peer_passes is None or number < peer_passes
    places = list(range(num_servers if are_there else 1))
    return places if number % 2 == 0 else places[::-1]


def _turnovers(args: argparse.Namespace) -> list[int]:
    given: list[int] = args.turnover
    if len(given) not in (1, len(args.concurrency)):
        raise ValueError(
            f"--turnover has {len(given)} numbers for the {len(args.concurrency)} of --concurrency"
        )
    return given if len(given) > 1 else given * len(args.concurrency)


def _rates(text: str) -> list[float]:
    return [] if text == NO_RATE else several(positive)(text)
