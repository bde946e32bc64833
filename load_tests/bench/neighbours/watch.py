"""What the neighbours of a large request see: streams that go on, and answers of /live."""

import asyncio
import http.client
import json
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import aiohttp

# between two questions to /live
PROBE_PERIOD_S = 0.02
PROBE_TIMEOUT_S = 60.0
# tokens of a good stream
NUM_TOKENS = 48


@dataclass(slots=True, kw_only=True)
class Window:
    """What was seen in some time.

    Attributes:
        live_s: how long each answer of /live took; infinity for none.
        gaps_s: times between two chunks of a good stream.
        num_streams: good streams that ended.
        faults: of good streams: cut off, or another text than at first.
    """

    live_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    num_streams: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def live_p99_s(self) -> float:
        """The 99th percentile, or infinity without any."""
        return share_below(self.live_s, 0.99)

    @property
    def gap_s(self) -> float:
        """The longest time between two chunks."""
        return max(self.gaps_s, default=0.0)


def share_below(seconds: Sequence[float], share: float) -> float:
    """What a share of all is not above, or infinity without any."""
    ordered = sorted(seconds)
    return ordered[int(share * (len(ordered) - 1))] if ordered else float("inf")


class Prober:
    """Asks /live again and again, in a process of its own: what loads the server is busy itself."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_probe,
            args=(address.hostname or "127.0.0.1", address.port or 80, theirs),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    async def take(self) -> list[float]:
        """Return what was seen since the last call, once the question of now is answered."""
        self._pipe.send(None)
        seen: list[float] = await asyncio.to_thread(self._pipe.recv)
        return seen

    def end(self) -> None:
        """Stop, and wait until it has."""
        self._pipe.close()
        self._process.join()


def _probe(host: str, port: int, pipe: Connection) -> None:
    """Ask until the other end of the pipe is closed; send what was seen when asked for it."""
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    seen: list[float] = []
    with suppress(EOFError):
        while True:
            if pipe.poll(PROBE_PERIOD_S):
                pipe.recv()
                pipe.send(seen)
                seen = []
            begin_s = time.perf_counter()
            try:
                connection.request("GET", "/live")
                connection.getresponse().read()
                seen.append(time.perf_counter() - begin_s)
            except OSError:
                connection.close()
                seen.append(float("inf"))
    connection.close()


class GoodStreams:
    """Streams the same greedy completions again and again, and compares them."""

    def __init__(self, session: aiohttp.ClientSession, count: int) -> None:
        """Args: session: with the server's URL as its base."""
        self._session = session
        self._count = count
        self._texts: dict[int, str] = {}
        self._window = Window()

    async def run(self) -> None:
        """Stream until cancelled."""
        await asyncio.gather(*(self._again(number) for number in range(self._count)))

    async def first(self) -> None:
        """Stream each once, on a server that does nothing else."""
        for number in range(self._count):
            self._texts[number] = await self._stream(number)

    def take(self) -> Window:
        """Return what was seen since the last call."""
        window, self._window = self._window, Window()
        return window

    async def _again(self, number: int) -> None:
        while True:
            try:
                text = await self._stream(number)
                if text != self._texts[number]:
                    self._window.faults.append(f"another text: {text[:40]!r}")
            except (aiohttp.ClientError, ValueError) as error:
                self._window.faults.append(f"{type(error).__name__}: {error}"[:120])
                await asyncio.sleep(0.1)
            self._window.num_streams += 1

    async def _stream(self, number: int) -> str:
        body = {
            "prompt": f"Once upon a time, in the year {number},",
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        text, last_s = "", None
        async with self._session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                now_s = time.perf_counter()
                if last_s is not None:
                    self._window.gaps_s.append(now_s - last_s)
                last_s = now_s
                if line.startswith(b"data: [DONE]"):
                    return text
                text += _text(json.loads(line[6:]))
        raise ValueError("cut off")


def _text(chunk: dict[str, list[dict[str, str]]]) -> str:
    if "error" in chunk:
        raise ValueError(str(chunk["error"]))
    with suppress(KeyError, IndexError):
        return chunk["choices"][0]["text"]
    return ""
