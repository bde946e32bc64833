"""Command `alerts`: real faults of a server, and a real Prometheus that has to notice them."""

import argparse
import asyncio
import math
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from load_tests import report
from load_tests.options import at_least, positive, several

if TYPE_CHECKING:
    from load_tests.monitoring.drills import Drill, Scene
    from load_tests.monitoring.prometheus import PrometheusServer

EXAMPLE = "python -m load_tests alerts --faster 10 --log"

_RULES = Path("deploy/prometheus-alerts.yaml")
_UNITS_S = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+)([smh])")
_LOOK_S = 1.0
# a scrape takes 2 s where a replica hangs, and may not take longer than from one to the next
_SCRAPE_S = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `alerts`."""
    parser.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    parser.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    parser.add_argument(
        "--proxy",
        choices=("haproxy", "python"),
        help="what streams (default: as `pagoda serve` chooses)",
    )
    parser.add_argument("--prometheus-port", type=at_least(1), default=9095, help="for Prometheus")
    parser.add_argument("--rules", type=Path, default=_RULES, help="alerts")
    parser.add_argument(
        "--faster", type=at_least(1), default=10, help="divide all durations of the rules by this"
    )
    parser.add_argument(
        "--only", type=several(str), metavar="ALERT,...", help="those faults that fire these"
    )
    parser.add_argument("--limit-s", type=positive, default=240.0, help="longest wait for an alert")
    parser.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    report.add_arguments(parser)


def faster(rules: dict[str, Any], factor: int) -> dict[str, Any]:
    """Return rules with all their windows and waits divided; thresholds stay."""

    def divided(match: re.Match[str]) -> str:
        return f"{max(1, int(match[1]) * _UNITS_S[match[2]] // factor)}s"

    def changed(rule: dict[str, Any]) -> dict[str, Any]:
        expression = re.sub(
            r"\[\w+\]", lambda window: _DURATION.sub(divided, window[0]), rule["expr"]
        )
        return rule | {"expr": expression, "for": _DURATION.sub(divided, rule["for"])}

    groups = [
        group | {"rules": [changed(rule) for rule in group["rules"]]} for group in rules["groups"]
    ]
    return {"groups": groups}


def run(args: argparse.Namespace) -> int:
    """Do every fault, print what fired after how long; 1 if an alert did not."""
    from load_tests.monitoring.drills import DRILLS

    files = report.start(args, "alerts")
    drills = [it for it in DRILLS if not args.only or set(args.only) & set(it.alerts)]
    seconds = _do_all(args, drills, files.path(".log"))
    rows = [
        (alert, drill.name, "did not fire" if (at := seconds[alert]) is None else f"{at:.0f} s")
        for drill in drills
        for alert in drill.alerts
    ]
    report.print_table(
        f"Alerts with durations divided by {args.faster}", ("alert", "fault", "fired after"), rows
    )
    num_fired = sum(at is not None for at in seconds.values())
    headline = f"{num_fired} of {len(seconds)} alerts fired by real faults"
    files.finish({"seconds": seconds, "faster": args.faster}, headline)
    return int(num_fired < len(seconds))


def _do_all(args: argparse.Namespace, drills: "list[Drill]", log: Path) -> dict[str, float | None]:
    from load_tests.faults.server import serving_options, small_model, write_config
    from load_tests.monitoring.drills import OPTIONS, VOCAB_SIZE, Scene
    from load_tests.monitoring.prometheus import prometheus
    from load_tests.overload.server import pagoda_serve

    url = f"http://127.0.0.1:{args.port}"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        model, config, rules = scratch / "model", scratch / "config.yaml", scratch / "rules.yaml"
        keys = scratch / "operators"
        keys.write_text(secrets.token_hex(16))
        options = serving_options(small_model(model, vocab_size=VOCAB_SIZE), "cpu") | OPTIONS
        options["operator_keys_file"] = str(keys)
        write_config(args.config, config, port=args.port, replicas=1, options=options)
        content = yaml.safe_load(args.rules.read_text(encoding="utf-8"))
        rules.write_text(yaml.safe_dump(faster(content, args.faster)), encoding="utf-8")
        with (
            pagoda_serve(args, config, log) as server,
            prometheus(
                url, rules, args.prometheus_port, scrape_s=_SCRAPE_S, key_file=keys
            ) as watcher,
        ):
            scene = Scene(server, url, model)
            return asyncio.run(_all(drills, scene, watcher, args.limit_s))


async def _all(
    drills: "list[Drill]", scene: "Scene", watcher: "PrometheusServer", limit_s: float
) -> dict[str, float | None]:
    seconds: dict[str, float | None] = {}
    for drill in drills:
        # what an earlier fault has fired is to be over
        await _until(watcher, frozenset(drill.alerts).isdisjoint, limit_s)
        await asyncio.to_thread(scene.server.seconds_until_healthy, math.inf)
        print(f"now: {drill.name}", flush=True)
        seconds |= await _one(drill, scene, watcher, limit_s)
    return seconds


async def _one(
    drill: "Drill", scene: "Scene", watcher: "PrometheusServer", limit_s: float
) -> dict[str, float | None]:
    start_s, seconds = time.perf_counter(), dict[str, float | None](dict.fromkeys(drill.alerts))

    def have_fired(firing: set[str]) -> bool:
        for alert in firing & seconds.keys():
            if seconds[alert] is None:
                seconds[alert] = time.perf_counter() - start_s
                print(f"  {alert} fires after {seconds[alert]:.0f} s", flush=True)
        return None not in seconds.values()

    fault = asyncio.ensure_future(drill.act(scene))
    try:
        await _until(watcher, have_fired, limit_s)
    finally:
        fault.cancel()
        await asyncio.gather(fault, return_exceptions=True)
    return seconds


async def _until(
    watcher: "PrometheusServer", is_true: Callable[[set[str]], bool], limit_s: float
) -> None:
    """Look each second until the names of the alerts that fire are as wanted, or it is too late."""
    end_s = time.perf_counter() + limit_s
    while time.perf_counter() < end_s and not is_true(await asyncio.to_thread(_look, watcher)):
        pass


def _look(watcher: "PrometheusServer") -> set[str]:
    time.sleep(_LOOK_S)
    return watcher.firing()
