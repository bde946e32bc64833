"""Command `startup`: servers that live once, timed and weighed."""

import argparse
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from load_tests import report
from load_tests.bench.startup.process_tree import Weight, end, wait_gone, weigh
from load_tests.bench.startup.server_process import ServerProcess, serving
from load_tests.options import positive

EXAMPLE = "python -m load_tests startup --config serve_config.yaml --cold"

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One start and stop; times of the start count from the command, those of the end from SIGINT.

    Attributes:
        cache: cold with an empty folder for models, warm with the user's.
        gone_s: until no process was left, or None if some had to be ended.
        left_over: pids and roles that did not end by themselves.
    """

    cache: str
    port_open_s: float
    healthy_s: float
    first_token_s: float
    weights: tuple[Weight, ...]
    gone_s: float | None
    left_over: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `startup`."""
    parser.add_argument(
        "--config", type=Path, default=Path("serve_config.yaml"), help="for serve run"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where that serves")
    parser.add_argument(
        "--cold", action="store_true", help="first start once with an empty cache folder for models"
    )
    parser.add_argument("--start-limit-s", type=positive, default=300.0, help="give up after this")
    parser.add_argument("--stop-limit-s", type=positive, default=60.0, help="end it after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Start and stop the server once or twice; 1 if a process was left over."""
    if not args.config.is_file():
        raise ValueError(f"no configuration {str(args.config)!r}")
    files = report.start(args, "startup")
    lives = []
    if args.cold:
        with tempfile.TemporaryDirectory() as empty:
            lives.append(_live(args, files, "cold", {"XDG_CACHE_HOME": empty}))
    lives.append(_live(args, files, "warm", {}))
    for life in lives:
        _show(life)
    headline = "; ".join(_headline(life) for life in lives)
    files.finish({"lives": [asdict(life) for life in lives]}, headline)
    return int(any(life.left_over for life in lives))


def _live(
    args: argparse.Namespace, files: report.Report, cache: str, extra_env: dict[str, str]
) -> Life:
    url, log = args.url.rstrip("/"), files.path(f"_{cache}.log")
    with serving(args.config, url, log, dict(os.environ) | extra_env) as server:
        port_open_s = server.seconds_until_open(args.start_limit_s)
        healthy_s = server.seconds_until_healthy(args.start_limit_s)
        first_token_s = server.seconds_until_first_token()
        weights = weigh(server.processes())
        gone_s, left_over = _stop(server, args.stop_limit_s)
    return Life(
        cache=cache,
        port_open_s=port_open_s,
        healthy_s=healthy_s,
        first_token_s=first_token_s,
        weights=tuple(weights),
        gone_s=gone_s,
        left_over=left_over,
    )


def _stop(server: ServerProcess, limit_s: float) -> tuple[float | None, tuple[str, ...]]:
    processes = server.processes()
    interrupted_s = time.perf_counter()
    server.interrupt()
    alive = wait_gone(processes, limit_s)
    gone_s = None if alive else time.perf_counter() - interrupted_s
    left_over = tuple(f"{weight.pid} {weight.role}" for weight in weigh(alive))
    end(alive)
    return gone_s, left_over


def _show(life: Life) -> None:
    steps = (
        ("port open", life.port_open_s),
        ("/health 200", life.healthy_s),
        ("first token of a chat", life.first_token_s),
        ("all processes gone after SIGINT", life.gone_s),
    )
    rows = [(what, "-" if seconds is None else f"{seconds:.1f}") for what, seconds in steps]
    report.print_table(f"Start and stop, {life.cache} cache", ("until", "seconds"), rows)
    columns = ("process", "number", "PSS MiB", "RSS MiB", "USS MiB")
    report.print_table(
        f"RAM after the first answer, {life.cache} cache", columns, _roles(life.weights)
    )
    print("left over and ended: " + (", ".join(life.left_over) or "none"))


def _roles(weights: Sequence[Weight]) -> list[tuple[str, ...]]:
    numbers = Counter(weight.role for weight in weights)
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for weight in weights:
        for role in (weight.role, "sum"):
            sizes = (weight.pss_bytes, weight.rss_bytes, weight.uss_bytes)
            totals[role] = [a + b for a, b in zip(totals[role], sizes, strict=True)]
    ordered = sorted(numbers, key=lambda role: -totals[role][0])
    numbers["sum"] = len(weights)
    return [
        (role, str(numbers[role]), *(f"{size / MIB:.0f}" for size in totals[role]))
        for role in [*ordered, "sum"]
    ]


def _headline(life: Life) -> str:
    pss_mib = sum(weight.pss_bytes for weight in life.weights) / MIB
    gone = f"left {len(life.left_over)}" if life.gone_s is None else f"{life.gone_s:.1f} s"
    return (
        f"{life.cache}: first token after {life.first_token_s:.1f} s, "
        f"{len(life.weights)} processes, PSS {pss_mib:.0f} MiB, gone {gone}"
    )
