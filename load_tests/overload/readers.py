"""Command `readers`: clients that do not read their answers, or go away, beside some that do both.

Row 18 and the client's part of row 17 of a server's faults: unread answers are ended after the
write deadline and hold little until then, those of clients that have gone are aborted at once, and
nobody else notices.
"""

import argparse
import asyncio
import json
import random
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from load_tests import report
from load_tests.bench.startup.process_tree import weigh
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.server import small_model
from load_tests.options import at_least, positive
from load_tests.overload.asking import open_session
from load_tests.overload.server import add_server_arguments, pagoda_serve, scrape, write_files
from load_tests.overload.slow_client import SlowClient, until_cut

EXAMPLE = "python -m load_tests readers --slow 100 --leave 200"

# an answer of most of a megabyte, more than sockets and buffers on its way take: each token with
# twenty alternatives
_LONG = {
    "messages": [{"role": "user", "content": "A slow reader"}], "max_tokens": 800,
    "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20,
}  # fmt: skip
_SHORT = {"prompt": "One that leaves", "max_tokens": 512, "ignore_eos": True, "stream": True}
_GOOD = {"max_tokens": 64, "temperature": 0, "seed": 1}
# that a server may say nothing, or be busy, after the last client has gone
_PATIENCE_S = 60.0


@dataclass(slots=True, kw_only=True)
class ReaderFigures:
    """What came of a server's readers; times in seconds, sizes in bytes.

    Attributes:
        num_slow, num_cut: answers that were not read or hardly, and those of them that were cut;
            the others went on when they were read after all.
        ended_s: from the request to the end of its connection, of answers that were not read at
            all; median and longest.
        held: what sockets held of a cut answer when it was read after all, median and most.
        grown_mib: memory of all processes of the server, at its most, beyond that before.
        num_gone: clients that have left.
        idle_s: after the last has left or was cut, until no request and no block is in use.
        num_good, num_wrong: answers beside them, and those that were not as before.
        gap_ms: between two pieces of these, 99 of 100, before and beside them.
    """

    num_slow: int = 0
    num_cut: int = 0
    ended_s: tuple[float, float] = (0.0, 0.0)
    held: tuple[float, float] = (0.0, 0.0)
    grown_mib: float = 0.0
    num_gone: int = 0
    idle_s: float = 0.0
    num_good: int = 0
    num_wrong: int = 0
    gap_ms: tuple[float, float] = (0.0, 0.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `readers`."""
    add_server_arguments(parser)
    load = parser.add_argument_group("load")
    load.add_argument("--slow", type=at_least(1), default=100, help="clients, half read nothing")
    load.add_argument("--leave", type=at_least(1), default=200, help="clients that go away")
    load.add_argument("--good", type=at_least(1), default=4, help="streams at once beside them")
    load.add_argument(
        "--limit-s", type=positive, default=300.0, help="for generation, and until all are cut"
    )
    load.add_argument("--write-s", type=positive, default=30.0, help="deadlines.write_s")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Start a server, let clients be slow and leave, print the table; 1 if others noticed."""
    files = report.start(args, "readers")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keys = secrets.token_hex(16), secrets.token_hex(16)
        options = {"deadlines": {"write_s": args.write_s, "queue_s": 600.0}}
        model = small_model(folder / "model")
        config = write_files(args, folder, model, keys[:1], keys[1], options)
        with pagoda_serve(args, config, files.path(".log")) as server:
            figures = asyncio.run(_Readers(args, server, *keys).run())
    _show(figures, args.write_s)
    files.finish({"figures": asdict(figures)}, _headline(figures))
    return int(figures.num_wrong > 0 or figures.num_cut < figures.num_slow)


class _Readers:
    """One server with its readers."""

    def __init__(
        self, args: argparse.Namespace, server: ServerProcess, key: str, operator: str
    ) -> None:
        self._args = args
        self._url = f"http://127.0.0.1:{args.port}"
        self._processes = server.processes()
        self._key = key
        self._operator = operator
        self._gaps: list[float] = []
        self._texts: list[str] = []
        self._is_over = False

    async def run(self) -> ReaderFigures:
        """Measure good streams by themselves and beside the others, and how all comes to rest."""
        args, figures = self._args, ReaderFigures(num_slow=self._args.slow)
        async with open_session(_PATIENCE_S) as session:
            await self._good_for(session, 10.0)
            right, gap_before = self._texts[0], _p99(self._gaps)
            self._texts, self._gaps = [], []
            before = self._memory()
            good = [asyncio.create_task(self._stay(session)) for _ in range(args.good)]
            clients = [await self._open(reads=number % 2 == 1) for number in range(args.slow)]
            await asyncio.gather(*(self._leave(number) for number in range(args.leave)))
            figures.num_gone = args.leave
            most = await self._until_cut(clients)
            self._is_over = True
            await asyncio.gather(*good)
            begin_s = time.perf_counter()
            await self._until_idle(session)
            figures.idle_s = time.perf_counter() - begin_s
        held = await asyncio.gather(*(each.rest() for each in clients))
        figures.num_cut = sum(each.is_cut for each in clients)
        figures.ended_s = _two([each.ended_s for each in clients if each.ended_s is not None])
        figures.held = _two(held)
        figures.grown_mib = (most - before) / (1 << 20)
        figures.num_good = len(self._texts)
        figures.num_wrong = sum(text != right for text in self._texts)
        figures.gap_ms = 1e3 * gap_before, 1e3 * _p99(self._gaps)
        return figures

    async def _good_for(self, session: aiohttp.ClientSession, seconds: float) -> None:
        tasks = [asyncio.create_task(self._stay(session)) for _ in range(self._args.good)]
        await asyncio.sleep(seconds)
        self._is_over = True
        await asyncio.gather(*tasks)
        self._is_over = False

    async def _stay(self, session: aiohttp.ClientSession) -> None:
        """Ask and read, one after the other, until it is over."""
        body = _GOOD | {"prompt": "The good reader", "stream": True, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {self._key}"}
        url = f"{self._url}/v1/completions"
        while not self._is_over:
            text, times = "", []
            async with session.post(url, json=body, headers=headers) as response:
                async for line in response.content:
                    data = line.removeprefix(b"data: ").strip()
                    if data.startswith(b"{"):
                        times.append(time.perf_counter())
                        text += "".join(each["text"] for each in json.loads(data)["choices"])
            self._texts.append(text)
            self._gaps += [b - a for a, b in pairwise(times)]

    async def _open(self, *, reads: bool) -> SlowClient:
        """Ask for a long answer by a socket that takes little of it."""
        request = self._request("/v1/chat/completions", _LONG)
        return await SlowClient.connected(self._args.port, request, reads=reads)

    async def _leave(self, number: int) -> None:
        """Ask, and go away within a second: with the request half sent, waiting, or answered."""
        rng = random.Random(number)
        _, writer = await asyncio.open_connection("127.0.0.1", self._args.port)
        request = self._request("/v1/completions", _SHORT)
        writer.write(request[: len(request) // 2] if number % 10 == 0 else request)
        await writer.drain()
        await asyncio.sleep(rng.random())
        # with what has come unread, so that the server is sent a reset
        writer.transport.abort()

    def _request(self, path: str, body: dict[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: server\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def _until_cut(self, clients: Sequence[SlowClient]) -> int:
        """Wait until the server has cut all, or for long; the most memory that it had."""
        most = [0]
        limit_s = self._args.limit_s
        await until_cut(clients, self._args.port, limit_s, lambda: most.append(self._memory()))
        return max(most)

    async def _until_idle(self, session: aiohttp.ClientSession) -> None:
        """Wait until no request is open and no block in use.

        Raises:
            ValueError: if that does not happen.
        """
        end_s = time.perf_counter() + _PATIENCE_S
        while time.perf_counter() < end_s:
            states = await scrape(session, self._url, self._operator, "pagoda_requests")
            usage = await scrape(session, self._url, self._operator, "pagoda_kv_usage_ratio")
            if not any(states.values()) and not any(usage.values()):
                return
            await asyncio.sleep(0.1)
        raise ValueError(f"requests are still open: {states}; share of blocks in use: {usage}")

    def _memory(self) -> int:
        return sum(weight.uss_bytes for weight in weigh(self._processes))


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))] if values else 0.0


def _two(values: Sequence[float]) -> tuple[float, float]:
    """The median and the most."""
    return (median(values), max(values)) if values else (0.0, 0.0)


def _show(figures: ReaderFigures, write_s: float) -> None:
    held_kib = figures.held[0] / 1024, figures.held[1] / 1024
    rows = [
        ("slow answers, cut by the server", f"{figures.num_slow}, {figures.num_cut}", "all"),
        (
            "unread ones after, median / longest s",
            _pair(figures.ended_s),
            f"{write_s:g} + generation",
        ),
        ("unread of each in sockets, median / most KiB", _pair(held_kib), ""),
        ("memory of the server, MiB", f"{figures.grown_mib:+.0f}", "+64"),
        ("clients that left", f"{figures.num_gone}", ""),
        ("then nothing is open or held after, s", f"{figures.idle_s:.1f}", "5"),
        ("good answers, wrong", f"{figures.num_good}, {figures.num_wrong}", "0 wrong"),
        ("between their pieces, p99 before / beside ms", _pair(figures.gap_ms), ""),
    ]
    report.print_table("Readers that do not read", ("measure", "figure", "promised"), rows)


def _pair(values: tuple[float, float]) -> str:
    return f"{values[0]:.1f} / {values[1]:.1f}"


def _headline(figures: ReaderFigures) -> str:
    return (
        f"{figures.num_cut} of {figures.num_slow} slow answers cut, unread ones within "
        f"{figures.ended_s[1]:.0f} s, memory {figures.grown_mib:+.0f} MiB, {figures.num_gone} "
        f"left, idle after {figures.idle_s:.1f} s, "
        f"{figures.num_wrong} of {figures.num_good} good wrong"
    )
