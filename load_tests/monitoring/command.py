"""Command `monitor`: a load on a server, seen by its clients and by a real Prometheus."""

import argparse
import asyncio
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from load_tests import report
from load_tests.monitoring.comparison import Ask, Compared, compare, compare_means
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests monitor --url http://127.0.0.1:8000 --concurrency 8 --log"

RULES = Path("deploy/prometheus-alerts.yaml")
BOARD = Path("deploy/grafana-dashboard.json")
# scrapes until Prometheus has all of what was before
_SETTLE_SCRAPES = 4

# compares with a Prometheus a load that began and was scraped whole at times since the epoch
_Comparison = Callable[[Ask, float, float], list[Compared]]


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
    parser.add_argument(
        "--aiperf", type=Path, metavar="PROGRAM", help="send the load with it, lengths fixed"
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="for aiperf (default: the embedded model's)"
    )
    parser.add_argument("--scrape-s", type=positive, default=1.0, help="between scrapes")
    parser.add_argument("--rules", type=Path, default=RULES, help="alerts")
    parser.add_argument("--board", type=Path, default=BOARD, help="dashboard")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the load, print both; 1 if they differ or a panel has nothing to show."""
    from load_tests.http.session import LoadSettings, drive
    from load_tests.monitoring.board import draw, panels
    from load_tests.monitoring.prometheus import prometheus

    files = report.start(args, "monitor")
    load = _own_load if args.aiperf is None else _aiperf_load
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
        compared = load(args)
        time.sleep(settle_s)
        end_s = time.time()
        figures = compared(server.value, start_s, end_s)
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


def _own_load(args: argparse.Namespace) -> _Comparison:
    """Send a load as `http` does."""
    from load_tests.http.session import Case, LoadSettings, drive
    from load_tests.traffic.lengths import parse_lengths
    from load_tests.traffic.schedule import at_once

    schedule = at_once(parse_lengths(args.lengths), args.requests, args.seed)
    case = Case(label="load", schedule=schedule, concurrency=args.concurrency)
    settings = LoadSettings(
        url=args.url, model="", vocab_size=args.vocab_size, seed=args.seed, warmup=0
    )
    [result] = asyncio.run(drive(settings, [case]))
    records = result.run.records
    if errors := sorted({str(record.error) for record in records if record.error}):
        raise ValueError(f"requests failed: {', '.join(errors)}")
    return lambda ask, start_s, end_s: compare(ask, records, start_s, end_s)


def _aiperf_load(args: argparse.Namespace) -> _Comparison:
    """Send a load with aiperf."""
    import httpx

    from load_tests.model_folders import embedded_model
    from load_tests.monitoring.aiperf import AiperfLoad

    lengths = re.fullmatch(r"fixed:(\d+):(\d+)", args.lengths)
    if lengths is None:
        raise ValueError(f"--lengths {args.lengths}: with --aiperf it must be fixed:PROMPT:OUTPUT")
    models = httpx.get(f"{args.url}/v1/models", trust_env=False).raise_for_status().json()
    load = AiperfLoad(
        program=args.aiperf.absolute(),
        url=args.url,
        model=models["data"][0]["id"],
        tokenizer=args.tokenizer or embedded_model(),
        concurrency=args.concurrency,
        num_requests=args.requests,
        prompt_len=int(lengths[1]),
        output_len=int(lengths[2]),
    )
    with tempfile.TemporaryDirectory() as folder:
        means = load.run(Path(folder))
    return lambda ask, start_s, end_s: compare_means(ask, means, start_s, end_s)
