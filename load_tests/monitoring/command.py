"""Command `monitor`: a load on a server, seen by its clients and by a real Prometheus."""

import argparse
import asyncio
import time
from dataclasses import asdict
from pathlib import Path

from load_tests import report
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests monitor --url http://127.0.0.1:8000 --concurrency 8 --log"

RULES = Path("deploy/prometheus-alerts.yaml")
BOARD = Path("deploy/grafana-dashboard.json")
# scrapes until Prometheus has all of what was before
_SETTLE_SCRAPES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `monitor`."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base without /v1")
    parser.add_argument("--port", type=at_least(1), default=9095, help="for Prometheus")
    parser.add_argument(
        "--operator-key-file", type=Path, metavar="FILE", help="with the key that opens /metrics"
    )
    parser.add_argument("--concurrency", type=at_least(1), default=8, help="requests in flight")
    parser.add_argument("--requests", type=at_least(1), default=120, help="to send")
    parser.add_argument("--lengths", default="fixed:128:64", help="as `http` has them")
    parser.add_argument("--vocab-size", type=at_least(1), default=32000, help="of prompts")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--scrape-s", type=positive, default=1.0, help="between scrapes")
    parser.add_argument("--rules", type=Path, default=RULES, help="alerts")
    parser.add_argument("--board", type=Path, default=BOARD, help="dashboard")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the load, print both; 1 if they differ or a panel has nothing to show."""
    from load_tests.http.session import Case, LoadSettings, drive
    from load_tests.monitoring.board import draw, panels
    from load_tests.monitoring.comparison import compare
    from load_tests.monitoring.prometheus import prometheus
    from load_tests.traffic.lengths import parse_lengths
    from load_tests.traffic.schedule import at_once

    files = report.start(args, "monitor")
    schedule = at_once(parse_lengths(args.lengths), args.requests, args.seed)
    case = Case(label="load", schedule=schedule, concurrency=args.concurrency)
    settings = LoadSettings(
        url=args.url, model="", vocab_size=args.vocab_size, seed=args.seed, warmup=0
    )
    settle_s = _SETTLE_SCRAPES * args.scrape_s
    with prometheus(
        args.url,
        args.rules,
        args.port,
        scrape_s=args.scrape_s,
        key_file=args.operator_key_file,
    ) as server:
        # what comes first is slow, and not of this load
        asyncio.run(drive(LoadSettings(url=args.url, model="", vocab_size=args.vocab_size), []))
        time.sleep(settle_s)
        start_s = time.time()
        [result] = asyncio.run(drive(settings, [case]))
        time.sleep(settle_s)
        end_s = time.time()
        records = result.run.records
        if errors := sorted({str(record.error) for record in records if record.error}):
            raise ValueError(f"requests failed: {', '.join(errors)}")
        figures = compare(server.value, records, start_s, end_s)
        window = f"{round(10 * args.scrape_s)}s"
        drawn = panels(server, args.board, start_s - settle_s, end_s, window)
        firing = sorted(server.firing())
    draw(drawn, files.path(".png"))
    report.print_table(
        f"As clients and as Prometheus have it, with a scrape each {args.scrape_s:g} s",
        ("figure", "clients", "Prometheus", "difference"),
        [
            (it.name, f"{it.client:.5g}", f"{it.prometheus:.5g}", f"{it.difference:+.2%}")
            for it in figures
        ],
    )
    empty = [f"{panel.title}: {expression}" for panel in drawn for expression in panel.empty]
    print(*(f"NOTHING TO SHOW {line}" for line in empty), sep="\n", end="\n" if empty else "")
    print(f"alerts that fire: {', '.join(firing) or 'none'}")
    headline = "; ".join(f"{it.name} {it.difference:+.1%}" for it in figures)
    headline += f"; {len(drawn)} panels, {len(empty)} lines empty; {len(firing)} alerts"
    document = {"figures": [asdict(it) for it in figures], "empty": empty, "firing": firing}
    files.finish(document, headline)
    return int(bool(empty) or not all(it.is_close for it in figures))
