"""Command `readers`: clients that do not read their answers, or go away, beside some that do both.

Row 18 and the client's part of row 17 of a server's faults: unread answers are ended after the
write deadline and hold little until then, those of clients that have gone are aborted at once, and
nobody else notices. What the answers cost others is no fault of those that do not read them: so the
same ones are read first, and what is beside them then is compared.
"""

import argparse
import asyncio
import gc
import json
import random
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import aiohttp

from load_tests import report
from load_tests.bench.startup.process_tree import weigh
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.server import small_model
from load_tests.options import at_least, positive
from load_tests.overload.asking import open_session
from load_tests.overload.reader_figures import ReaderFigures, headline, show, total
from load_tests.overload.server import add_server_arguments, pagoda_serve, scrape, write_files
from load_tests.overload.slow_client import END, SlowClient, http_request, until_cut

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
# between two looks at the server's memory
_WEIGH_S = 2.0

ResultT = TypeVar("ResultT")


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
    show(figures, args.write_s)
    files.finish({"figures": asdict(figures)}, headline(figures))
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
        # what is there now stays: the collector would look through it while pieces come
        gc.collect()
        gc.freeze()
        async with open_session(_PATIENCE_S) as session:
            await self._beside(session, asyncio.sleep(10.0))
            right, quiet_s = self._texts[0], _p99(self._gaps)
            await self._beside(session, self._read_all())
            read_s = _p99(self._gaps)
            before = self._memory()
            clients: list[SlowClient] = []
            most = await self._beside(session, self._until_cut(clients))
            figures.num_gone = args.leave
            begin_s = time.perf_counter()
            await self._until_idle(session)
            figures.idle_s = time.perf_counter() - begin_s
        held = await asyncio.gather(*(each.rest() for each in clients))
        figures.num_cut = sum(each.is_cut for each in clients)
        figures.ended_s = _two([each.ended_s for each in clients if each.ended_s is not None])
        figures.held = _two(held)
        figures.grown_mib = {role: most[role] - before.get(role, 0.0) for role in most}
        figures.num_good = len(self._texts)
        figures.num_wrong = sum(text != right for text in self._texts)
        figures.gap_ms = 1e3 * quiet_s, 1e3 * read_s, 1e3 * _p99(self._gaps)
        return figures

    async def _beside(
        self, session: aiohttp.ClientSession, work: Coroutine[Any, Any, ResultT]
    ) -> ResultT:
        """Keep good streams running until something else is done; notes only these."""
        self._texts, self._gaps, self._is_over = [], [], False
        good = [asyncio.create_task(self._stay(session)) for _ in range(self._args.good)]
        result = await work
        self._is_over = True
        await asyncio.gather(*good)
        return result

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

    async def _read_all(self) -> None:
        """Ask for as many long answers as are slow later, and read them."""

        async def read() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._args.port)
            writer.write(http_request("/v1/chat/completions", _LONG, self._key))
            tail = b""
            while END not in tail and (data := await reader.read(1 << 16)):
                tail = tail[-len(END) :] + data
            writer.close()

        await asyncio.gather(*(read() for _ in range(self._args.slow)))

    async def _open(self, *, reads: bool) -> SlowClient:
        """Ask for a long answer by a socket that takes little of it."""
        request = http_request("/v1/chat/completions", _LONG, self._key)
        return await SlowClient.connected(self._args.port, request, reads=reads)

    async def _leave(self, number: int) -> None:
        """Ask, and go away within a second: with the request half sent, waiting, or answered."""
        rng = random.Random(number)
        _, writer = await asyncio.open_connection("127.0.0.1", self._args.port)
        request = http_request("/v1/completions", _SHORT, self._key)
        writer.write(request[: len(request) // 2] if number % 10 == 0 else request)
        await writer.drain()
        await asyncio.sleep(rng.random())
        # with what has come unread, so that the server is sent a reset
        writer.transport.abort()

    async def _until_cut(self, clients: list[SlowClient]) -> dict[str, float]:
        """Let clients be slow, and some leave, until the server has cut them, or for long.

        Args:
            clients: empty; those that are slow are put there.

        Returns:
            The most memory that the server had; see `_memory`.
        """
        args = self._args
        most: dict[str, float] = {}
        due_s = 0.0
        clients += [await self._open(reads=number % 2 == 1) for number in range(args.slow)]
        await asyncio.gather(*(self._leave(number) for number in range(args.leave)))

        async def look() -> None:
            nonlocal most, due_s
            # it takes a tenth of a second, in which good streams are read as before
            if time.perf_counter() >= due_s:
                due_s = time.perf_counter() + _WEIGH_S
                most = max(most, await asyncio.to_thread(self._memory), key=total)

        await until_cut(clients, args.port, args.limit_s, look)
        # those that read a little have stopped the server later than those that read nothing
        await asyncio.sleep(args.write_s)
        return most

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

    def _memory(self) -> dict[str, float]:
        """MiB that each role's processes would free at their end."""
        sizes: dict[str, float] = defaultdict(float)
        for weight in weigh(self._processes):
            sizes[weight.role] += weight.uss_bytes / (1 << 20)
        return sizes


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))] if values else 0.0


def _two(values: Sequence[float]) -> tuple[float, float]:
    """The median and the most."""
    return (median(values), max(values)) if values else (0.0, 0.0)
