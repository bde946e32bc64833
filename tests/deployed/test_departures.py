"""Clients that leave cost no log line and keep no block."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app.api.server import CHAT, COMPLETIONS
from tests.deployed.asking import BEAMS, SEVERAL, choices_of
from tests.deployed.serve_run import BLOCK_SIZE, NUM_BLOCKS, SECRET, Deployed, bad_lines

pytestmark = pytest.mark.ray

# would have Serve not look whether the client is there
DISABLED = {"x-request-disconnect-disabled": "?1"}
POOL = NUM_BLOCKS * BLOCK_SIZE
# runs only when every block is free again
WHOLE_POOL = {"prompt": [17] * (POOL - 4), "max_tokens": 4, "ignore_eos": True}
# each request that is left has a length of its own, by which its trace is found
LENGTHS = itertools.count(POOL // 4)


def long_answer(**fields: Any) -> dict[str, Any]:
    """A request that takes longer than its client stays."""
    return {"prompt": SECRET, "max_tokens": next(LENGTHS), "ignore_eos": True, **fields}


def trace_of(body: dict[str, Any], deployed: Deployed) -> dict[str, Any] | None:
    traces = [json.loads(line) for line in deployed.traces()]
    found = [trace for trace in traces if trace["max_tokens"] == body["max_tokens"]]
    assert len(found) < 2
    return found[0] if found else None


async def assert_left(
    body: dict[str, Any], http: httpx.AsyncClient, deployed: Deployed
) -> dict[str, Any] | None:
    """Check that a request was ended and its blocks are free; returns its trace."""
    await choices_of(http, COMPLETIONS, WHOLE_POOL)
    trace = trace_of(body, deployed)
    if trace is not None:
        assert set(trace["finish_reasons"]) == {"abort"}
        assert trace["output_length"] < body["max_tokens"]
    assert bad_lines(deployed.log_lines()) == []
    return trace


@asynccontextmanager
async def connection(
    deployed: Deployed, route: str, body: bytes, length: int
) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request with `body` as (the beginning of) its content; leaves at the end."""
    address = urlsplit(deployed.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {length}\r\n\r\n".encode() + body)
    await writer.drain()
    try:
        yield reader
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("kind", "headers"), [({}, {}), (SEVERAL, {}), (BEAMS, {}), ({}, DISABLED)], ids=str
)
async def test_a_client_that_leaves_a_stream_frees_its_blocks(
    kind: dict[str, Any], headers: dict[str, str], http: httpx.AsyncClient, deployed: Deployed
) -> None:
    body = long_answer(stream=True, **kind)
    async with http.stream("POST", COMPLETIONS, json=body, headers=headers) as response:
        assert response.status_code == 200
        await anext(response.aiter_raw())
    assert await assert_left(body, http, deployed) is not None


@pytest.mark.parametrize("headers", [{}, DISABLED], ids=str)
async def test_a_client_that_leaves_before_its_answer_frees_its_blocks(
    headers: dict[str, str], http: httpx.AsyncClient, deployed: Deployed
) -> None:
    body = long_answer()
    task = asyncio.ensure_future(http.post(COMPLETIONS, json=body, headers=headers))
    # a stream that begins after it: by then it has been submitted
    await choices_of(http, COMPLETIONS, {"prompt": "x", "max_tokens": 8, "stream": True})
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await assert_left(body, http, deployed) is not None


async def test_a_client_that_leaves_the_queue_is_forgotten(
    http: httpx.AsyncClient, deployed: Deployed
) -> None:
    # there is no room for both prompts
    first = long_answer(stream=True, prompt=[17] * (POOL * 2 // 3))
    waiting = long_answer(prompt=[18] * (POOL // 2))
    content = json.dumps(waiting).encode()
    async with http.stream("POST", COMPLETIONS, json=first) as response:
        await anext(response.aiter_raw())
        async with connection(deployed, COMPLETIONS, content, len(content)):
            await http.get("/v1/models")
    trace = await assert_left(waiting, http, deployed)
    assert trace is None or trace["output_length"] == 0


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT, "/tokenize", "/v1/prefixes"])
async def test_a_client_that_leaves_while_its_body_is_read_costs_no_log_line(
    route: str, http: httpx.AsyncClient, deployed: Deployed
) -> None:
    before = deployed.log_lines("replica_pagoda_Ingress")
    beginning = f'{{"prompt": "{SECRET}'.encode()
    async with connection(deployed, route, beginning, 1000):
        await http.get("/live")
    # others are gone before the replica asks for their bodies
    for _ in range(8):
        async with connection(deployed, route, beginning, 1000):
            pass
    await choices_of(http, COMPLETIONS, {"prompt": "x", "max_tokens": 2})
    lines = set(deployed.log_lines("replica_pagoda_Ingress")) - set(before)
    # each request that was begun has its line of the access log, and nothing else is said
    assert [line for line in lines if " -- generation " not in line] == []
