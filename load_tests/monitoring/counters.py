"""Command `counters`: replicas behind one port, one of them killed, and what a Prometheus then has.

A scrape meets any ingress replica. No counter may seem to go back, whichever answers and whoever
dies, and every expression of a board for vLLM must have an answer.
"""

import argparse
import asyncio
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from load_tests import report
from load_tests.options import at_least, positive

if TYPE_CHECKING:
    from load_tests.monitoring.drills import Scene
    from load_tests.monitoring.prometheus import PrometheusServer

EXAMPLE = "python -m load_tests counters --duration-s 600"

_RULES = Path("deploy/prometheus-alerts.yaml")
_SHARE_KILLED_AT = 0.4
# of a load that leaves the machine to others
_BODY = {"max_tokens": 48, "ignore_eos": True, "prompt": [300] * 32}
_MODEL = "served"
_HISTOGRAMS = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
_QUANTILES = (0.99, 0.95, 0.9, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What Prometheus has of all counters over the whole time.

    Attributes:
        names: of metrics that only grow.
        series: of them, those of replicas that are gone too.
        replicas: by tag, that were scraped at some time.
        resets: times that a series went back; 0 is wanted.
        lowest_rate: of any series in any half minute.
        scrapes, missed: that went well and not.
    """

    names: int
    series: int
    replicas: int
    resets: int
    lowest_rate: float
    scrapes: int
    missed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `counters`."""
    parser.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    parser.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    parser.add_argument("--prometheus-port", type=at_least(1), default=9095, help="for Prometheus")
    parser.add_argument("--ingresses", type=at_least(1), default=2, help="replicas")
    parser.add_argument("--engines", type=at_least(1), default=2, help="replicas")
    parser.add_argument("--clients", type=at_least(1), default=3, help="that ask all the time")
    parser.add_argument("--scrape-s", type=positive, default=3.0, help="between scrapes")
    parser.add_argument("--duration-s", type=positive, default=600.0, help="of the load")
    parser.add_argument("--start-limit-s", type=positive, default=300.0, help="give up after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the load, kill a replica, print the table; 1 if a counter went back or nothing came."""
    from load_tests.bench.startup.server_process import serving
    from load_tests.faults.server import serving_options, set_ingress, small_model, write_config
    from load_tests.monitoring.drills import Scene
    from load_tests.monitoring.prometheus import prometheus

    files = report.start(args, "counters")
    url = f"http://127.0.0.1:{args.port}"
    with tempfile.TemporaryDirectory() as name:
        model, config = Path(name) / "model", Path(name) / "config.yaml"
        options = serving_options(small_model(model), "cpu") | {"metrics": {"aliases": ["vllm"]}}
        write_config(args.config, config, port=args.port, replicas=args.engines, options=options)
        set_ingress(config, {"num_replicas": args.ingresses})
        with (
            serving(config, url, files.path(".log"), dict(os.environ)) as server,
            prometheus(url, _RULES, args.prometheus_port, scrape_s=args.scrape_s) as watcher,
        ):
            server.seconds_until_healthy(args.start_limit_s)
            start_s = time.time()
            scene = Scene(server, url, model)
            asyncio.run(_load_and_kill(scene, args.clients, args.duration_s))
            time.sleep(2 * args.scrape_s)
            counted = count(watcher, math.ceil(time.time() - start_s))
            silent = [each for each in vllm_board() if not watcher.values(each)]
    _show(counted, silent)
    headline = (
        f"{counted.resets} resets of {counted.series} series of {counted.replicas} replicas in "
        f"{counted.scrapes} scrapes; {len(silent)} of {len(vllm_board())} expressions for vLLM "
        "without an answer"
    )
    files.finish({"counted": asdict(counted), "silent": silent}, headline)
    return int(bool(counted.resets or silent or counted.lowest_rate < 0))


async def _load_and_kill(scene: "Scene", num_clients: int, duration_s: float) -> None:
    from load_tests.monitoring.drills import ENGINE

    async with scene.load(_BODY, num_clients):
        await asyncio.sleep(_SHARE_KILLED_AT * duration_s)
        victim = scene.process(ENGINE)
        print(f"now: SIGKILL to {ENGINE}, process {victim.pid}", flush=True)
        victim.kill()
        await asyncio.sleep((1 - _SHARE_KILLED_AT) * duration_s)


def count(watcher: "PrometheusServer", seconds: int) -> Counted:
    """Ask a Prometheus for all metrics of the server that only grow, over the last seconds."""
    grows = '{__name__=~"pagoda_.+_(total|count|sum|bucket)"}'
    found = watcher.values(f"count by (__name__) (last_over_time({grows}[{seconds}s]))")
    names = sorted(each.labels["__name__"] for each in found)
    resets = [watcher.values(f"resets({name}[{seconds}s])") for name in names]
    rates = [watcher.values(f"min_over_time(rate({name}[30s])[{seconds}s:10s])") for name in names]
    tags = watcher.values(f"count by (replica) (last_over_time({grows}[{seconds}s]))")
    [scrapes] = watcher.values(f"sum_over_time(up[{seconds}s])")
    [tried] = watcher.values(f"count_over_time(up[{seconds}s])")
    return Counted(
        names=len(names),
        series=sum(map(len, resets)),
        replicas=len(tags),
        resets=round(sum(_values(resets))),
        lowest_rate=min(_values(rates), default=math.nan),
        scrapes=round(scrapes.values[0]),
        missed=round(tried.values[0] - scrapes.values[0]),
    )


def _values(found: Sequence[Sequence[Any]]) -> list[float]:
    return [value for group in found for each in group for value in each.values]


def vllm_board() -> list[str]:
    """Return what vLLM's own example board asks Prometheus for, with its variables filled in.

    The board: examples/observability/prometheus_grafana/grafana.json of vLLM, version 8.
    """
    model, window = f'{{model_name="{_MODEL}"}}', "1m"

    def per_second(name: str) -> str:
        return f"rate(vllm:{name}{model}[{window}])"

    def more(name: str, label: str) -> str:
        return f"sum by({label}) (increase(vllm:{name}{model}[{window}]))"

    quantiles = [
        f"histogram_quantile({share}, sum by(le) ({per_second(f'{name}_seconds_bucket')}))"
        for name in _HISTOGRAMS
        for share in _QUANTILES
    ]
    means = [
        f"{per_second(f'{name}_seconds_sum')} / {per_second(f'{name}_seconds_count')}"
        for name in _HISTOGRAMS
    ]
    rates = [
        per_second(name)
        for name in (
            "prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum",
            "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
            "request_max_num_generation_tokens_sum",
        )
    ]  # fmt: skip
    gauges = [
        f"vllm:{name}{model}"
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    ]
    increases = [
        more("request_prompt_tokens_bucket", "le"),
        more("request_generation_tokens_bucket", "le"),
        more("request_success_total", "finished_reason"),
    ]
    return [*quantiles, *means, *rates, *gauges, *increases]


def _show(counted: Counted, silent: Sequence[str]) -> None:
    rows = [
        ("metrics that only grow, series of them", f"{counted.names}, {counted.series}"),
        ("replicas that were scraped", str(counted.replicas)),
        ("scrapes, missed", f"{counted.scrapes}, {counted.missed}"),
        ("times that a counter went back", str(counted.resets)),
        ("lowest rate of a counter in half a minute", f"{counted.lowest_rate:g} /s"),
        ("expressions of vLLM's board without an answer", str(len(silent))),
    ]
    report.print_table("Counters behind one port", ("", "Prometheus"), rows)
    print(*(f"NO ANSWER {each}" for each in silent), sep="\n", end="\n" if silent else "")
