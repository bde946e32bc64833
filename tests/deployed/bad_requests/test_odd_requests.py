"""Bytes on a socket that are no requests, or odd ones: the server goes on, and logs no error."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app.api.bad_input.odd_requests import HALF_CLOSED, ODD_REQUESTS, PIPELINED, OddRequest
from tests.app.api.server import COMPLETIONS
from tests.deployed.serve_run import Deployed, bad_lines

pytestmark = pytest.mark.ray
# longer than any of the answers takes; a connection that is left open without one ends with it
LIMIT_S = 30.0


async def answer_to(deployed: Deployed, sent: bytes, *, ends: bool = False) -> bytes:
    """Send bytes on a connection of their own; returns what comes until it is over.

    Args:
        ends: whether to close the way to the server behind them.
    """
    address = urlsplit(deployed.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        # what is refused half-way may end the connection while it is still sent
        with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            writer.write(sent)
            await writer.drain()
            if ends:
                writer.write_eof()
            async with asyncio.timeout(LIMIT_S):
                return await _first(reader)
        return b""
    finally:
        writer.transport.abort()


async def _first(reader: asyncio.StreamReader) -> bytes:
    """Read the head of an answer and what its length says, or until the end."""
    head = b""
    while not head.endswith(b"\r\n\r\n") or head.endswith(b" 100 Continue\r\n\r\n"):
        line = await reader.readline()
        if not line:
            return head
        head += line
    lengths = [
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return head + (await reader.readexactly(lengths[0]) if lengths else b"")


@pytest.mark.parametrize("odd", ODD_REQUESTS, ids=lambda odd: odd.words.replace(" ", "-"))
async def test_odd_requests_are_refused_or_answered(
    odd: OddRequest, http: httpx.AsyncClient, deployed: Deployed
) -> None:
    # a connection may wait for more of what never comes: the end says that there is none
    answer = await answer_to(deployed, odd.sent, ends=odd.number != 80)
    # what Serve's own proxy says to the announcement of a body, before it knows the route
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
    assert status in odd.right, answer[:300]
    assert b"Traceback" not in answer
    good = await http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
    assert good.status_code == 200
    assert bad_lines(deployed.log_lines()) == []


async def test_pipelined_requests_are_answered_in_order_or_not_at_all(deployed: Deployed) -> None:
    address = urlsplit(deployed.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    statuses: list[int] = []
    try:
        writer.write(b"".join(PIPELINED))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(LIMIT_S):
                while len(statuses) < len(PIPELINED) and (answer := await _first(reader)):
                    statuses.append(int(answer.split(b" ", 2)[1]))
    finally:
        writer.transport.abort()
    assert statuses == [200, 400, 200] * 10 or statuses == [200]


async def test_a_client_that_only_closes_its_way_to_the_server_costs_no_error(
    http: httpx.AsyncClient, deployed: Deployed
) -> None:
    answer = await answer_to(deployed, HALF_CLOSED, ends=True)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 499"))
    good = await http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
    assert good.status_code == 200


async def test_streams_are_neither_compressed_nor_held_back(http: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "max_tokens": 30, "ignore_eos": True, "stream": True}
    headers = {"accept-encoding": "gzip, br, zstd"}
    async with http.stream("POST", COMPLETIONS, json=body, headers=headers) as response:
        assert "content-encoding" not in response.headers
        parts = [part async for part in response.aiter_raw()]
    assert parts[0].startswith(b"data: {")
    assert len(parts) > 2


async def test_equal_requests_at_once_are_answered_alike(http: httpx.AsyncClient) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answers = await asyncio.gather(*(http.post(COMPLETIONS, json=body) for _ in range(50)))
    assert {answer.status_code for answer in answers} <= {200, 429}
    texts = {answer.json()["choices"][0]["text"] for answer in answers if answer.status_code == 200}
    assert len(texts) == 1


async def test_resets_in_mid_stream_leave_the_server_as_it_was(
    http: httpx.AsyncClient, deployed: Deployed
) -> None:
    body = b'{"prompt":"x","max_tokens":400,"ignore_eos":true,"stream":true}'
    address = urlsplit(deployed.url)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    for _ in range(10):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readline()
        writer.transport.abort()
    good = await http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
    assert good.status_code == 200
    assert bad_lines(deployed.log_lines()) == []
