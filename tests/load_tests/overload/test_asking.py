"""Requests that are sent whatever becomes of them, and what is noted of each."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from load_tests.free_port import free_port
from load_tests.overload.asking import Question, ask, closed_loop, open_loop, open_session

CHUNKS = (
    b'data: {"choices": [{"token_ids": [5, 6]}]}\n\n',
    b": keep-alive\n\n",
    b'data: {"choices": [{"token_ids": [7]}]}\n\n',
    b"data: [DONE]\n\n",
)


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if request.headers["Authorization"] == "Bearer refused":
        return web.json_response({"error": {}}, status=429)
    response = web.StreamResponse()
    await response.prepare(request)
    # one is cut before its end
    for chunk in CHUNKS[: 4 if body["max_tokens"] == 3 else 3]:
        await response.write(chunk)
    return response


@pytest.fixture
async def url() -> AsyncIterator[str]:
    app, port = web.Application(), free_port()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}"
    await runner.cleanup()


def question(url: str, key: str = "good", output_len: int = 3) -> Question:
    return Question(url=url, key=key, vocab_size=50, prompt_len=4, output_len=output_len)


async def test_each_answer_is_noted_as_it_came(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        whole = await ask(session, question(url), 1)
        cut = await ask(session, question(url, output_len=9), 1)
        refused = await ask(session, question(url, "refused"), 1)
        lost = await ask(session, question("http://127.0.0.1:1"), 1)
    assert (whole.status, whole.num_tokens, whole.is_whole) == (200, 3, True)
    assert whole.first_s is not None
    assert whole.sent_s <= whole.first_s <= whole.end_s
    assert (cut.num_tokens, cut.is_whole) == (3, False)
    assert (refused.status, refused.first_s, refused.is_whole) == (429, None, False)
    assert (lost.status, lost.is_whole) == (0, False)


async def test_a_server_that_has_forgotten_a_request_is_not_waited_for() -> None:
    is_over = asyncio.Event()

    async def forget(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.close()

    async with await asyncio.start_server(forget, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(30), open_session(0.05) as session:
            forgotten = await ask(session, question(f"http://{host}:{port}"), 1)
        is_over.set()
    assert (forgotten.status, forgotten.is_whole) == (0, False)


async def test_loads_are_closed_or_open(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        closed = await closed_loop(session, [question(url)], 2, 0.05)
        both = [question(url), question(url, "refused")]
        opened = await open_loop(session, both, rate_per_s=400.0, duration_s=0.05)
    assert len(closed) >= 2
    assert all(each.is_whole for each in closed)
    # they take turns
    assert [each.status for each in opened] == [(200, 429)[i % 2] for i in range(len(opened))]
    assert len(opened) > 2


async def test_what_is_refused_is_sent_again_a_few_times(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        asked = [question(url, "refused")]
        once = await open_loop(session, asked, rate_per_s=200.0, duration_s=0.05)
        thrice = await open_loop(session, asked, rate_per_s=200.0, duration_s=0.05, num_retries=2)
    assert len(thrice) == 3 * len(once)
    assert sum(each.is_again for each in thrice) == 2 * len(once)
