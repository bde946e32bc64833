"""Whatever ends a request early, its sequences are aborted."""

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest
from ray.exceptions import ActorDiedError, TaskCancelledError
from ray.serve.exceptions import RequestCancelledError

from engine.errors import EngineError, Overloaded, PromptTooLong
from tests.app.api.answers import BODIES
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    chat_body,
    completion_body,
    encode,
    in_process,
    make_app,
    serving,
)
from tests.fakes.scripted_engine import FakeEngineClient, Script


def waiting(**fields: Any) -> FakeEngineClient:
    return FakeEngineClient([Script(encode("The quick brown fox"), pause_at=1)], **fields)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_client_that_closes_its_stream_ends_the_request(path: str) -> None:
    client = waiting()
    async with serving(make_app(client)) as http:
        async with http.stream("POST", path, json=BODIES[path](stream=True)) as response:
            assert response.status_code == 200
            assert b"The" in await anext(response.aiter_raw())
        await client.abort_seen.wait()
    assert client.aborted == [0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_any_answer_ends_the_request(stream: bool) -> None:
    client = FakeEngineClient([Script([5], pause_at=0)])
    async with serving(make_app(client)) as http:
        task = asyncio.ensure_future(http.post(COMPLETIONS, json=completion_body(stream=stream)))
        await client.paused.wait()
        task.cancel()
        await client.abort_seen.wait()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert client.aborted == [0]


async def test_every_prompt_of_a_request_is_aborted() -> None:
    client = waiting()
    async with serving(make_app(client)) as http:
        body = completion_body(prompt=["a", "b", "c"], stream=True)
        async with http.stream("POST", COMPLETIONS, json=body) as response:
            await anext(response.aiter_raw())
        await client.abort_seen.wait()
    assert sorted(client.aborted) == [0, 1, 2]


async def test_the_text_comes_as_it_is_made() -> None:
    client = waiting()
    async with (
        serving(make_app(client)) as http,
        http.stream("POST", COMPLETIONS, json=completion_body(stream=True)) as response,
    ):
        parts = response.aiter_raw()
        first = await anext(parts)
        assert b"The" in first
        assert b"quick" not in first
        client.resume.set()
        rest = b"".join([part async for part in parts])
    assert rest.endswith(b"data: [DONE]\n\n")
    assert client.aborted == []


async def test_an_abort_completes_while_the_request_is_cancelled_again_and_again() -> None:
    client = waiting(abort_gate=asyncio.Event())
    sent: list[MutableMapping[str, Any]] = []
    task = asyncio.ensure_future(call(make_app(client), completion_body(stream=True), sent))
    await client.paused.wait()
    for _ in range(3):
        task.cancel()
        # lets the cancellation arrive
        await asyncio.wait({task}, timeout=0.01)
    assert not task.done()
    assert client.abort_gate is not None
    client.abort_gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.aborted == [0]


async def test_a_failed_send_ends_the_request(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeEngineClient([Script(encode("The quick brown fox"))])
    await call(make_app(client), completion_body(stream=True), None)
    assert client.aborted == [0]
    # a client that leaves is no error
    assert caplog.records == []


async def test_a_failed_send_ends_every_prompt_and_leaves_no_task() -> None:
    client = FakeEngineClient([Script(encode("The quick brown fox"), pause_at=2)])
    await call(make_app(client), completion_body(prompt=["a", "b", "c"], stream=True), None)
    assert sorted(client.aborted) == [0, 1, 2]
    assert asyncio.all_tasks() == {asyncio.current_task()}


# what a connection raises when its client is gone: sockets, and Serve between proxy and replica
GONE = [
    ConnectionResetError(),
    KeyError("Request ID 1 not found."),
    RuntimeError("New messages cannot be sent after the queue is closed."),
    TaskCancelledError(),
    RequestCancelledError("1"),
    ActorDiedError(),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize", "/v1/prefixes"])
@pytest.mark.parametrize("error", GONE, ids=repr)
async def test_a_client_that_leaves_while_its_body_is_read_costs_no_log_line(
    path: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeEngineClient([])
    sent: list[MutableMapping[str, Any]] = []
    parts = [{"type": "http.request", "body": b'{"model', "more_body": True}]

    async def receive() -> MutableMapping[str, Any]:
        if parts:
            return parts.pop()
        raise error

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    with caplog.at_level(logging.INFO):
        await make_app(client)(scope_of(path), receive, send)
    assert (sent, client.prompts, caplog.records) == ([], [], [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", GONE, ids=repr)
async def test_a_client_that_leaves_while_it_is_answered_costs_no_log_line(
    stream: bool, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeEngineClient([Script(encode("The quick brown fox"))])
    with caplog.at_level(logging.INFO):
        await call(make_app(client), completion_body(stream=stream), None, error)
        await call(make_app(client), completion_body(temperature="hot"), None, error)
    assert caplog.records == []


@pytest.mark.parametrize("error", GONE, ids=repr)
async def test_a_connection_that_breaks_while_tokens_are_made_ends_the_request(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client = waiting()
    body = httpx.Request("POST", "http://test", json=completion_body()).content
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        await client.paused.wait()
        raise error

    async def send(message: MutableMapping[str, Any]) -> None:
        raise AssertionError

    with caplog.at_level(logging.INFO):
        await make_app(client)(scope_of(COMPLETIONS), receive, send)
    assert client.aborted == [0]
    assert caplog.records == []


async def test_a_request_that_ends_by_itself_is_not_aborted() -> None:
    client = FakeEngineClient([Script(encode("The quick"))])
    async with in_process(make_app(client)) as http:
        await http.post(COMPLETIONS, json=completion_body())
        await http.post(CHAT, json=chat_body(stream=True))
    assert client.aborted == []


async def test_a_refused_prompt_undoes_the_others() -> None:
    refusal = Overloaded("the queue is full", retry_after_s=1)
    client = FakeEngineClient([Script([5])], refusal=refusal, num_accepted=2)
    async with in_process(make_app(client)) as http:
        response = await http.post(COMPLETIONS, json=completion_body(prompt=["a", "b", "c"]))
    assert response.status_code == 429
    assert sorted(client.aborted) == [0, 1]


async def test_one_prompt_that_fails_ends_the_others() -> None:
    client = FakeEngineClient(
        [Script([5] * 9, pause_at=1), Script([5, 5], error=EngineError("x"), error_at=1)]
    )
    async with in_process(make_app(client)) as http:
        response = await http.post(COMPLETIONS, json=completion_body(prompt=["a", "b"]))
    assert response.status_code == 503
    assert 0 in client.aborted


@pytest.mark.parametrize(("path", "param"), [(COMPLETIONS, "prompt"), (CHAT, "messages")])
async def test_a_prompt_that_fits_no_pool_is_named_as_the_client_named_it(
    path: str, param: str
) -> None:
    refusal = PromptTooLong("the pool holds 64 tokens", param="prompt", limit=64, got=99)
    async with in_process(make_app(FakeEngineClient([], refusal=refusal))) as http:
        response = await http.post(path, json=BODIES[path](stream=True))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        param,
    )


async def call(
    app: Any,
    body: dict[str, Any],
    sent: list[MutableMapping[str, Any]] | None,
    error: Exception | None = None,
) -> None:
    """Call the application without a server; with nowhere to send, sending text raises `error`."""
    request = httpx.Request("POST", f"http://test{COMPLETIONS}", json=body)
    messages = [{"type": "http.request", "body": request.content, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        if sent is not None:
            sent.append(message)
        elif message["type"] == "http.response.body":
            raise error or ConnectionError

    await app(scope_of(COMPLETIONS), receive, send)


def scope_of(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
