"""Sends bad requests at a rate from a process of its own, and times their answers."""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import aiohttp

from load_tests.bench.neighbours.bad_bodies import MOST_BYTES
from load_tests.bench.neighbours.fillings import LargeRequest

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class BadAnswer:
    """What came of a bad request.

    Attributes:
        number: of the request in the list of all.
        status: of HTTP; 0 if the connection failed.
        seconds: from its first byte to the last one of the answer.
        error: of a connection that failed.
        is_right: whether it was refused by an error of the client's, in the API's envelope.
    """

    number: int
    status: int
    seconds: float
    is_right: bool
    error: str = ""


async def send_bad(
    session: aiohttp.ClientSession, requests: Sequence[LargeRequest], number: int
) -> BadAnswer:
    """Send one request and read its answer."""
    request, content = requests[number], b""
    headers = {"content-type": "application/json"}
    if len(request.body) > MOST_BYTES:
        # it is answered while it is sent, and its connection is of no use any more
        headers["connection"] = "close"
    status, error, start_s = 0, "", time.perf_counter()
    try:
        async with session.post(request.path, data=request.body, headers=headers) as response:
            status, content = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as failure:
        error = f"{type(failure).__name__}: {failure}"[:120]
    seconds = time.perf_counter() - start_s
    is_right = 400 <= status < 500 and _is_enveloped(content)
    return BadAnswer(number, status, seconds, is_right, error)


def open_bad_session(url: str) -> aiohttp.ClientSession:
    """Make a session that keeps its connections."""
    return aiohttp.ClientSession(
        url,
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),
    )


class BadSender:
    """Sends requests in turn, between `start` and `stop`."""

    def __init__(self, url: str, requests: Sequence[LargeRequest], rate_per_s: float) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(url, list(requests), rate_per_s, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def start(self) -> None:
        """Begin to send."""
        self._pipe.send(True)

    async def stop(self) -> list[BadAnswer]:
        """Send no more, and return what came of all since `start`, once they are answered."""
        self._pipe.send(False)
        seen: list[BadAnswer] = await asyncio.to_thread(self._pipe.recv)
        return seen

    def end(self) -> None:
        """Wait until the process has ended."""
        self._pipe.close()
        self._process.join()


def _serve(url: str, requests: Sequence[LargeRequest], rate_per_s: float, pipe: Connection) -> None:
    with suppress(EOFError):
        while True:
            pipe.recv()
            pipe.send(asyncio.run(_send_until_stopped(url, requests, rate_per_s, pipe)))


async def _send_until_stopped(
    url: str, requests: Sequence[LargeRequest], rate_per_s: float, pipe: Connection
) -> list[BadAnswer]:
    tasks: list[asyncio.Task[BadAnswer]] = []
    start_s = time.perf_counter()
    async with open_bad_session(url) as session:
        while not pipe.poll():
            due_s = start_s + len(tasks) / rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            number = len(tasks) % len(requests)
            tasks.append(asyncio.create_task(send_bad(session, requests, number)))
        pipe.recv()
        return await asyncio.gather(*tasks)


def _is_enveloped(content: bytes) -> bool:
    with suppress(ValueError, KeyError, TypeError):
        return isinstance(json.loads(content)["error"]["message"], str)
    return False
