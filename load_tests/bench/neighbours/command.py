"""Command `neighbours`: large requests, one after the other, beside good streams and /live."""

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import aiohttp
import psutil
import yaml

from load_tests import report
from load_tests.bench.neighbours.fillings import LargeRequest, UnmadeRequest, filled
from load_tests.bench.neighbours.named import NUM_BYTES, named
from load_tests.bench.neighbours.watch import GoodStreams, Prober, Window
from load_tests.bench.startup.process_tree import weigh
from load_tests.bench.startup.server_process import serving
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests neighbours --only 'content|logprobs'"

MIB = 1 << 20
INGRESS = "replica Ingress"
# the least time that is watched of each request, and of a server that does nothing else
MIN_WINDOW_S, QUIET_S = 1.0, 5.0
# memory goes back a little after the request; it is waited for where more than this is missing
SETTLE_S = 4.0
SETTLED_BYTES = 8 << 20
BASES: Mapping[str, Mapping[str, object]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
    "/v1/prefixes": {"name": "a", "prompt": "Hi"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One large request and what was seen beside it.

    Attributes:
        answer_bytes: of all its copies.
        grown_mib: of the ingress, from before the request to afterwards.
        total_mib: the same from before the first request.
    """

    name: str
    status: str
    answer_s: float
    answer_bytes: int
    live_p99_ms: float
    gap_ms: float
    num_streams: int
    faults: tuple[str, ...]
    grown_mib: float
    total_mib: float

    def after(self, later: Window, grown_bytes: int, total_bytes: int) -> "Row":
        """Add what was seen until memory had gone back."""
        return replace(
            self,
            num_streams=self.num_streams + later.num_streams,
            faults=(*self.faults, *later.faults),
            grown_mib=grown_bytes / MIB,
            total_mib=total_bytes / MIB,
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `neighbours`."""
    parser.add_argument("--url", help="a server of this machine that runs; starts one otherwise")
    parser.add_argument(
        "--config", type=Path, default=Path("serve_config.yaml"), help="to start one from"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="requests to send, by name")
    parser.add_argument("--streams", type=at_least(1), default=3, help="good ones at a time")
    parser.add_argument("--tokens", type=at_least(1), default=4000, help="of long prompts")
    parser.add_argument("--copies", type=at_least(1), default=160, help="of bodies sent at once")
    parser.add_argument("--live-ms", type=positive, default=100.0, help="bound of /live, p99")
    parser.add_argument("--grown-mib", type=positive, default=64.0, help="bound of the ingress")
    parser.add_argument("--start-limit-s", type=positive, default=300.0, help="give up after this")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Send every request; 1 if one of them broke a bound."""
    files = report.start(args, "neighbours")
    requests = [request for request in _requests(args) if re.search(args.only, request.name)]
    if not requests:
        raise ValueError(f"no request has a name like {args.only!r}")
    with _server(args, files) as (url, processes):
        ingress = _ingress(processes)
        quiet, rows = asyncio.run(_measure(url, ingress, requests, args.streams))
    broken = [row for row in rows if _breaks(row, args)]
    _show(quiet, rows, args)
    figures = {"quiet_live_p99_ms": 1e3 * quiet.live_p99_s, "rows": [asdict(row) for row in rows]}
    worst = max(row.live_p99_ms for row in rows)
    grown = max(row.grown_mib for row in rows)
    headline = (
        f"{len(rows)} requests, {len(broken)} broke a bound; /live p99 at worst {worst:.0f} ms "
        f"(quiet {1e3 * quiet.live_p99_s:.0f}), ingress +{grown:.0f} MiB at most, "
        f"{rows[-1].total_mib:+.0f} MiB after all"
    )
    print(headline)
    files.finish(figures, headline)
    return int(bool(broken))


def _requests(args: argparse.Namespace) -> Iterator[UnmadeRequest]:
    yield from named(args.tokens, args.copies)
    command = [sys.executable, "-m", "app.http.schemas"]
    printed = subprocess.run(command, capture_output=True, check=True, text=True)
    for path, schema in json.loads(printed.stdout).items():
        yield from filled(path, schema, BASES[path], NUM_BYTES)


@contextmanager
def _server(
    args: argparse.Namespace, files: report.Report
) -> Iterator[tuple[str, Iterable[psutil.Process]]]:
    """Yield the URL, and the processes of which one is the ingress."""
    if args.url:
        yield args.url.rstrip("/"), psutil.process_iter()
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = yaml.safe_load(args.config.read_text(encoding="utf-8"))
    config.setdefault("http_options", {})["port"] = port
    for deployment in config["applications"][0].get("deployments", ()):
        # memory and streams are those of one process
        deployment.pop("autoscaling_config", None)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve_config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        with serving(path, url, files.path(".log"), dict(os.environ)) as server:
            server.seconds_until_healthy(args.start_limit_s)
            yield url, server.processes()


async def _measure(
    url: str, ingress: psutil.Process, requests: Sequence[UnmadeRequest], num_streams: int
) -> tuple[Window, list[Row]]:
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        streams, prober = GoodStreams(session, num_streams), Prober(url)
        await streams.first()
        running = asyncio.ensure_future(streams.run())
        try:
            await asyncio.sleep(QUIET_S)
            quiet = await _seen(streams, prober)
            first_bytes = last_bytes = _own_bytes(ingress)
            rows: list[Row] = []
            for unmade in requests:
                request = unmade.made()
                row = await _send(session, request, streams, prober)
                now_bytes = await _settled(ingress, last_bytes)
                seen, grown_bytes = await _seen(streams, prober), now_bytes - last_bytes
                rows.append(row.after(seen, grown_bytes, now_bytes - first_bytes))
                last_bytes = now_bytes
                print(_line(rows[-1]), flush=True)
            return quiet, rows
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            prober.end()


async def _send(
    session: aiohttp.ClientSession,
    request: LargeRequest,
    streams: GoodStreams,
    prober: Prober,
) -> Row:
    await _seen(streams, prober)
    begin_s = time.perf_counter()
    answers = await asyncio.gather(*(_post(session, request) for _ in range(request.copies)))
    answer_s = time.perf_counter() - begin_s
    await asyncio.sleep(max(0.2, MIN_WINDOW_S - answer_s))
    seen = await _seen(streams, prober)
    return Row(
        name=request.name,
        status=",".join(sorted({status for status, _ in answers})),
        answer_s=answer_s,
        answer_bytes=sum(size for _, size in answers),
        live_p99_ms=1e3 * seen.live_p99_s,
        gap_ms=1e3 * seen.gap_s,
        num_streams=seen.num_streams,
        faults=tuple(seen.faults),
        grown_mib=0.0,
        total_mib=0.0,
    )


async def _post(session: aiohttp.ClientSession, request: LargeRequest) -> tuple[str, int]:
    """Return the status, and the bytes of the answer."""
    headers, size = {"content-type": "application/json"}, 0
    try:
        async with session.post(request.path, data=request.body, headers=headers) as response:
            async for part in response.content.iter_any():
                size += len(part)
            return str(response.status), size
    except (aiohttp.ClientError, TimeoutError) as error:
        return type(error).__name__, size


async def _settled(ingress: psutil.Process, before_bytes: int) -> int:
    """Return how large the ingress is, at its smallest within the time to settle."""
    least, begin_s = 1 << 60, time.perf_counter()
    while least > before_bytes + SETTLED_BYTES and time.perf_counter() - begin_s < SETTLE_S:
        least = min(least, _own_bytes(ingress))
        await asyncio.sleep(0.25)
    return least


def _own_bytes(process: psutil.Process) -> int:
    """What only this process holds: neither files nor pages of Ray's object store."""
    own: int = process.memory_full_info().uss
    return own


async def _seen(streams: GoodStreams, prober: Prober) -> Window:
    window = streams.take()
    window.live_s = await prober.take()
    return window


def _ingress(processes: Iterable[psutil.Process]) -> psutil.Process:
    found = [weight.pid for weight in weigh(list(processes)) if weight.role == INGRESS]
    if len(found) != 1:
        raise ValueError(f"{len(found)} ingress processes run on this machine, one is needed")
    return psutil.Process(found[0])


def _breaks(row: Row, args: argparse.Namespace) -> bool:
    is_slow = row.live_p99_ms > args.live_ms
    return bool(row.faults) or is_slow or row.grown_mib > args.grown_mib


def _show(quiet: Window, rows: Sequence[Row], args: argparse.Namespace) -> None:
    columns = (
        "request",
        "status",
        "answer s",
        "MB",
        "/live p99 ms",
        "gap ms",
        "streams",
        "MiB",
        "",
    )
    table = [
        (
            row.name,
            row.status,
            f"{row.answer_s:.2f}",
            f"{row.answer_bytes / 1e6:.1f}",
            f"{row.live_p99_ms:.0f}",
            f"{row.gap_ms:.0f}",
            f"{row.num_streams - len(row.faults)}/{row.num_streams}",
            f"{row.grown_mib:+.0f}",
            "broken" if _breaks(row, args) else "",
        )
        for row in rows
    ]
    title = f"/live p99 without them: {1e3 * quiet.live_p99_s:.0f} ms, gap {1e3 * quiet.gap_s:.0f}"
    report.print_table(title, columns, table)
    for row in rows:
        for fault in row.faults:
            print(f"{row.name}: {fault}")


def _line(row: Row) -> str:
    return (
        f"{row.name}: {row.status} after {row.answer_s:.2f} s, /live {row.live_p99_ms:.0f} ms, "
        f"gap {row.gap_ms:.0f} ms, {row.grown_mib:+.0f} MiB {' '.join(row.faults)}"
    )
