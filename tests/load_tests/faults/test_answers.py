import dataclasses
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from load_tests.faults.answers import Choice, Received, ask
from load_tests.faults.mix import MixedRequest

PLAIN = MixedRequest(kind="greedy", body={"prompt": [300]})
STREAMED = MixedRequest(kind="greedy", body={"prompt": [300], "stream": True})


def choice(text: str, *, index: int = 0, reason: str | None = None) -> dict[str, Any]:
    logprobs = {"tokens": [text], "token_logprobs": [-0.5]}
    return {"index": index, "text": text, "finish_reason": reason, "logprobs": logprobs}


async def answer_to(
    case: MixedRequest, serve: Callable[[web.Request, web.StreamResponse], Any], status: int = 200
) -> Received:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        await serve(request, response)
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession() as session:
            return await ask(session, f"http://{host}:{port}", case)
    finally:
        await runner.cleanup()


def events(*bodies: dict[str, Any], done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


async def test_a_stream_is_joined_by_choice() -> None:
    async def serve(_: web.Request, response: web.StreamResponse) -> None:
        pieces = [choice("a"), choice("x", index=1, reason="stop")]
        await response.write(events({"choices": pieces}))

    answer = await answer_to(STREAMED, serve)
    assert answer.is_complete
    assert answer.choices[0] == Choice(text="a", tokens=["a"], logprobs=[-0.5])
    assert answer.choices[1].finish_reason == "stop"
    assert len(answer.arrivals_s) == 1


async def test_pieces_and_usage_add_up() -> None:
    async def serve(_: web.Request, response: web.StreamResponse) -> None:
        usage = {"choices": [], "usage": {"completion_tokens": 2}}
        more = {"choices": [choice("b", reason="length")]}
        await response.write(events({"choices": [choice("a")]}, more, usage))

    answer = await answer_to(STREAMED, serve)
    assert answer.choices[0].text == "ab"
    assert answer.completion_tokens == 2
    assert len(answer.arrivals_s) == 3


async def test_a_stream_without_done_was_cut() -> None:
    async def serve(_: web.Request, response: web.StreamResponse) -> None:
        await response.write(events({"choices": [choice("a")]}, done=False))

    answer = await answer_to(STREAMED, serve)
    assert (answer.is_complete, answer.error) == (False, "cut_without_done")


async def test_an_error_in_a_stream_is_an_error_even_before_done() -> None:
    async def serve(_: web.Request, response: web.StreamResponse) -> None:
        await response.write(events({"error": {"code": "engine_failed", "type": "server_error"}}))

    answer = await answer_to(STREAMED, serve)
    assert (answer.is_complete, answer.error) == (False, "engine_failed")


async def test_a_status_is_an_error_and_a_broken_connection_a_cut() -> None:
    async def nothing(_: web.Request, response: web.StreamResponse) -> None:
        return

    async def cut(request: web.Request, response: web.StreamResponse) -> None:
        assert request.transport is not None
        request.transport.close()

    assert (await answer_to(PLAIN, nothing, status=503)).error == "http_503"
    assert (await answer_to(PLAIN, cut)).error.startswith("cut_")


def answered(text: str = "a", logprob: float = -1.0, tokens: int = 1) -> Received:
    choices = {0: Choice(text=text, finish_reason="stop", tokens=["a"], logprobs=[logprob])}
    return Received(sent_s=0.0, is_complete=True, completion_tokens=tokens, choices=choices)


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        (answered(), True),
        (answered(logprob=-1.0005), True),
        (answered(logprob=-1.01), False),
        (answered(text="b"), False),
        (answered(tokens=2), False),
        (dataclasses.replace(answered(), is_complete=False), False),
        (dataclasses.replace(answered(), choices={}), False),
    ],
)
def test_answers_are_equal_up_to_the_rounding_of_logprobs(other: Received, is_equal: bool) -> None:
    assert answered().equals(other) is is_equal
