"""Command `neighbours`: large requests, one after the other, beside good streams and /live."""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import aiohttp
import psutil

from load_tests import report
from load_tests.bench.neighbours.bare_server import bare_server
from load_tests.bench.neighbours.fillings import LargeRequest, UnmadeRequest, filled
from load_tests.bench.neighbours.named import NUM_BYTES, named
from load_tests.bench.neighbours.rows import Row, breaks, line, show
from load_tests.bench.neighbours.server import LoadedServer, Proxy, started
from load_tests.bench.neighbours.watch import GoodStreams, Prober, Window
from load_tests.options import at_least, positive

EXAMPLE = "python -m load_tests neighbours --only 'content|logprobs'"

# that a server which does nothing else is watched
QUIET_S = 5.0
# memory goes back a little after the request; it is waited for where more than this is missing
SETTLE_S = 4.0
SETTLED_BYTES = 8 << 20
BASES: Mapping[str, Mapping[str, object]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/score": {"text_1": "Hi", "text_2": "Hi"},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
    "/v1/prefixes": {"name": "a", "prompt": "Hi"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `neighbours`."""
    parser.add_argument("--url", help="a server of this machine that runs; starts one otherwise")
    parser.add_argument(
        "--config", type=Path, default=Path("serve_config.yaml"), help="to start one from"
    )
    parser.add_argument(
        "--proxy", choices=get_args(Proxy), default="haproxy", help="of a server that is started"
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="requests to send, by name")
    parser.add_argument("--streams", type=at_least(1), default=3, help="good ones at a time")
    parser.add_argument("--tokens", type=at_least(1), default=4000, help="of long prompts")
    parser.add_argument("--copies", type=at_least(1), default=160, help="of bodies sent at once")
    parser.add_argument("--window-s", type=positive, default=1.0, help="least time watched of each")
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
    with _server(args, files) as server:
        quiet, rows = asyncio.run(_measure(server, requests, args))
    broken = [row for row in rows if breaks(row, args)]
    show(server.proxy, quiet, rows, args)
    figures = {
        "proxy": server.proxy,
        "quiet_live_p99_ms": 1e3 * quiet.live_p99_s,
        "rows": [asdict(row) for row in rows],
    }
    worst = max(row.live_p99_ms for row in rows)
    grown = max(row.grown_mib for row in rows)
    headline = (
        f"{server.proxy}: {len(rows)} requests, {len(broken)} broke a bound; /live p99 at worst "
        f"{worst:.0f} ms (quiet {1e3 * quiet.live_p99_s:.0f}), ingress +{grown:.0f} MiB at most, "
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


def _server(args: argparse.Namespace, files: report.Report) -> AbstractContextManager[LoadedServer]:
    if args.url:
        return nullcontext(LoadedServer(args.url.rstrip("/"), psutil.process_iter()))
    return started(args.config, args.proxy, files.path(".log"), args.start_limit_s)


async def _measure(
    server: LoadedServer, requests: Sequence[UnmadeRequest], args: argparse.Namespace
) -> tuple[Window, list[Row]]:
    async with _session(server.url) as session:
        streams, prober = GoodStreams(session, args.streams), Prober(server.url)
        await streams.first()
        running = asyncio.ensure_future(streams.run())
        try:
            await asyncio.sleep(QUIET_S)
            quiet = await _seen(streams, prober)
            first_bytes = last_bytes = server.ingress_bytes
            rows: list[Row] = []
            for unmade in requests:
                request = unmade.made()
                row = await _send(session, request, streams, prober, server, args.window_s)
                now_bytes = await _settled(server, last_bytes)
                seen, grown_bytes = await _seen(streams, prober), now_bytes - last_bytes
                row = row.after(seen, grown_bytes, now_bytes - first_bytes)
                if request.copies > 1:
                    row = replace(row, bare_live_p99_ms=1e3 * await _bare_live_p99_s(request))
                rows.append(row)
                last_bytes = now_bytes
                print(line(row), flush=True)
            return quiet, rows
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            prober.end()


def _session(url: str) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=600)
    return aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0))


async def _bare_live_p99_s(request: LargeRequest) -> float:
    """Send the same to a server that only reads it, beside good streams of the real one."""
    with bare_server() as url:
        async with _session(url) as session:
            prober = Prober(url)
            try:
                await _post(session, replace(request, body=b"{}"))
                await prober.take()
                await _answers(session, request)
                return Window(live_s=await prober.take()).live_p99_s
            finally:
                prober.end()


async def _send(
    session: aiohttp.ClientSession,
    request: LargeRequest,
    streams: GoodStreams,
    prober: Prober,
    server: LoadedServer,
    window_s: float,
) -> Row:
    await _seen(streams, prober)
    before, begin_s = server.spent(), time.perf_counter()
    answers = await _answers(session, request)
    answer_s = time.perf_counter() - begin_s
    await asyncio.sleep(max(0.2, window_s - answer_s))
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
        spent=server.spent().since(before),
    )


async def _answers(session: aiohttp.ClientSession, request: LargeRequest) -> list[tuple[str, int]]:
    return await asyncio.gather(*(_post(session, request) for _ in range(request.copies)))


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


async def _settled(server: LoadedServer, before_bytes: int) -> int:
    """Return how large the ingress is, at its smallest within the time to settle."""
    least, begin_s = 1 << 60, time.perf_counter()
    while least > before_bytes + SETTLED_BYTES and time.perf_counter() - begin_s < SETTLE_S:
        least = min(least, server.ingress_bytes)
        await asyncio.sleep(0.25)
    return least


async def _seen(streams: GoodStreams, prober: Prober) -> Window:
    window = streams.take()
    window.live_s = await prober.take()
    return window
