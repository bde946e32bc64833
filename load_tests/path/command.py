"""Command `path`: what the way of a token from the step to its client takes, without a GPU.

A real server, whose workers have no model: they take a given time for each step, as a GPU does, and
what is left is ours. Figures are CPU time of each process per 1,000 tokens, which hold on a busy
machine too, and of the idle server in percent of a core.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from load_tests import report
from load_tests.bench.startup.process_tree import cpu_seconds
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.server import small_model, vocab_size, write_config
from load_tests.http.metrics import LoadFigures
from load_tests.http.session import Case, LoadSettings, drive
from load_tests.options import at_least, not_negative, positive, several
from load_tests.overload.server import pagoda_serve
from load_tests.path.borders import border_times
from load_tests.path.paced_worker import read_steps, write_pace
from load_tests.traffic.latencies import Summary, summarise
from load_tests.traffic.lengths import parse_lengths
from load_tests.traffic.schedule import Extent, at_once, poisson

EXAMPLE = "python -m load_tests path --streams 64,256,512 --step-ms 10"

_APPLICATION = "load_tests.path.application:build"
_MAX_MODEL_LEN = 2048
# roles whose figures are shown by themselves; the others are summed
_SHOWN = ("scheduler", "replica Engine", "replica Ingress", "proxy")
_REST = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFigures:
    """What one case took.

    Attributes:
        cpu_ms: CPU milliseconds per 1,000 output tokens, by what a process is for.
        client_cpu_ms: the same of this process.
        tokens_per_s: output of all streams together.
        chunk_tokens: mean tokens of a chunk.
        ttft_ms, gap_ms: to the first token, and between chunks: p50 and p99.
        inwards_ms, first_ms, outwards_ms: see `BorderTimes`; p50 and p99.
        num_failed: requests without a complete answer.
    """

    case: str
    cpu_ms: Mapping[str, float]
    client_cpu_ms: float
    tokens_per_s: float
    chunk_tokens: float
    ttft_ms: tuple[float, float]
    gap_ms: tuple[float, float]
    inwards_ms: tuple[float, float]
    first_ms: tuple[float, float]
    outwards_ms: tuple[float, float]
    num_failed: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `path`."""
    load = parser.add_argument_group("load")
    load.add_argument(
        "--streams", type=several(at_least(1)), default=[64, 256, 512], help="open at once"
    )
    load.add_argument("--rate", type=several(positive), default=[], help="requests per second")
    load.add_argument("--duration-s", type=positive, default=15.0, help="of the arrivals of a rate")
    load.add_argument("--turnover", type=positive, default=1.5, help="requests for each stream")
    load.add_argument("--lengths", default="sharegpt", help="see the command http")
    load.add_argument("--idle-s", type=not_negative, default=15.0, help="watch the idle server")
    load.add_argument("--seed", type=int, default=0, help="of lengths and prompts")
    server = parser.add_argument_group("server")
    server.add_argument("--step-ms", type=positive, default=10.0, help="what a step takes")
    server.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    server.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    server.add_argument("--proxy", choices=("haproxy", "python"), help="what streams")
    server.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="of this model (default: the embedded one)"
    )
    server.add_argument("--ingresses", type=at_least(1), default=1, help="replicas")
    server.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="further options, as in YAML"
    )
    server.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all cases and print the table; 1 if a request was not answered."""
    files = report.start(args, "path")
    with tempfile.TemporaryDirectory() as scratch, _server(args, Path(scratch), files) as server:
        idle = _idle(server, args.idle_s) if args.idle_s else {}
        model = Path(scratch) / "model"
        settings = LoadSettings(
            url=f"http://127.0.0.1:{args.port}",
            vocab_size=vocab_size(model),
            seed=args.seed,
        )
        results = [_measure(args, server, settings, case, model) for case in cases_of(args)]
    columns = ("case", *_SHOWN, _REST, "all", "client", "tok/s", "chunk", "TTFT ms", "gap ms")
    report.print_table("CPU ms per 1,000 tokens", columns, map(row_of, results))
    borders = ("case", "sent to step", "step to client, first", "later")
    title = "Borders, ms, p50 / p99; right as long as the way back takes less than a step"
    report.print_table(title, borders, map(borders_of, results))
    percent = ", ".join(f"{role} {value:.1f}" for role, value in idle.items() if value >= 0.1)
    print(f"idle, percent of a core: {sum(idle.values()):.1f} ({percent})")
    headline = "; ".join(f"{one.case}: {sum(one.cpu_ms.values()):.0f} ms" for one in results)
    document = {"idle_percent": idle, "cases": [asdict(one) for one in results]}
    files.finish(document, f"CPU per 1,000 tokens: {headline}; idle {sum(idle.values()):.1f} %")
    return int(any(one.num_failed for one in results))


def write_options(args: argparse.Namespace, scratch: Path) -> Path:
    """Make the model's folder and the configuration of the server; returns the latter."""
    model = small_model(scratch / "model", args.tokenizer)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    write_pace(model, args.step_ms / 1e3)
    max_num_seqs = max(64, *args.streams)
    options = {
        "model": str(model),
        "served_model_name": "served",
        "load_format": "dummy",
        "device": "cpu",
        "dtype": "float32",
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": 2048,
        "max_model_len": _MAX_MODEL_LEN,
        "num_blocks": max_num_seqs * _MAX_MODEL_LEN // 16,
        "max_num_waiting": 8192,
    }
    path = scratch / "serve_config.yaml"
    options |= {name: yaml.safe_load(value) for name, value in (x.split("=") for x in args.set)}
    write_config(args.config, path, port=args.port, replicas=1, options=options)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    [application] = written["applications"]
    application["import_path"] = _APPLICATION
    for deployment in application["deployments"]:
        if deployment["name"] == "Ingress":
            deployment["num_replicas"] = args.ingresses
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    return path


@contextmanager
def _server(
    args: argparse.Namespace, scratch: Path, files: report.Report
) -> Iterator[ServerProcess]:
    with pagoda_serve(args, write_options(args, scratch), files.path(".log")) as server:
        yield server


def cases_of(args: argparse.Namespace) -> list[Case]:
    """The cases of a run: rates, then numbers of streams."""
    lengths = parse_lengths(args.lengths, _MAX_MODEL_LEN)
    extent = Extent(duration_s=args.duration_s, num_requests=None)
    rates = [
        Case(label=f"{rate:g} req/s", schedule=poisson(rate, lengths, extent, args.seed))
        for rate in args.rate
    ]
    return rates + [
        Case(
            label=f"{number} streams",
            schedule=at_once(lengths, round(args.turnover * number), args.seed),
            concurrency=number,
        )
        for number in args.streams
    ]


def _idle(server: ServerProcess, seconds: float) -> dict[str, float]:
    """Percent of a core that each kind of process takes without requests."""
    processes = server.processes()
    before, begin_s = cpu_seconds(processes), time.perf_counter()
    time.sleep(seconds)
    taken, seconds = cpu_seconds(processes), time.perf_counter() - begin_s
    return {role: 100 * (taken[role] - before[role]) / seconds for role in taken}


def _measure(
    args: argparse.Namespace,
    server: ServerProcess,
    settings: LoadSettings,
    case: Case,
    model: Path,
) -> PathFigures:
    processes = server.processes()
    before = cpu_seconds(processes)
    [result] = asyncio.run(drive(settings, [case]))
    taken, figures = cpu_seconds(processes), result.figures
    num_thousands = sum(record.num_tokens for record in result.run.records) / 1e3
    times = border_times(result.run, read_steps(model), args.step_ms / 1e3)
    client_s = result.run.client_cpu_share * figures.makespan_s
    one = PathFigures(
        case=case.label,
        cpu_ms={role: 1e3 * (taken[role] - before[role]) / num_thousands for role in taken},
        client_cpu_ms=1e3 * client_s / num_thousands,
        tokens_per_s=figures.output_tokens_per_s,
        chunk_tokens=_mean(figures),
        ttft_ms=_ms(figures.ttft_s),
        gap_ms=_ms(figures.chunk_gap_s),
        inwards_ms=_ms(summarise(times.inwards), 1.0),
        first_ms=_ms(summarise(times.first), 1.0),
        outwards_ms=_ms(summarise(times.outwards), 1.0),
        num_failed=figures.num_requests - figures.num_finished,
    )
    print(one, flush=True)
    return one


def _mean(figures: LoadFigures) -> float:
    return 0.0 if figures.chunk_tokens is None else figures.chunk_tokens.mean


def _ms(summary: Summary | None, scale: float = 1e3) -> tuple[float, float]:
    return (0.0, 0.0) if summary is None else (scale * summary.p50, scale * summary.p99)


def row_of(one: PathFigures) -> tuple[str, ...]:
    """The cells of a case."""
    shown = [one.cpu_ms.get(role, 0.0) for role in _SHOWN]
    whole = sum(one.cpu_ms.values())
    figures = [*shown, whole - sum(shown), whole, one.client_cpu_ms, one.tokens_per_s]
    times = [f"{p50:.0f} / {p99:.0f}" for p50, p99 in (one.ttft_ms, one.gap_ms)]
    return (one.case, *(f"{value:,.1f}" for value in figures), f"{one.chunk_tokens:.2f}", *times)


def borders_of(one: PathFigures) -> tuple[str, ...]:
    """The cells of a case's times."""
    times = (one.inwards_ms, one.first_ms, one.outwards_ms)
    return (one.case, *(f"{p50:.1f} / {p99:.1f}" for p50, p99 in times))
