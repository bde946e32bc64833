"""Requests that take too long, on either side, and those that have no chance."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Scope

from app.http.generate_endpoint import PART_BYTES
from app.protocol.api_settings import Deadlines, KeyLimits
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    chat_body,
    completion_body,
    in_process,
    make_app,
)
from tests.fakes.scripted_engine import FakeEngineClient, Script

JSON = [(b"content-type", b"application/json")]


def post(path: str = COMPLETIONS) -> Scope:
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": JSON, "root_path": "", "http_version": "1.1",
        "scheme": "http", "server": ("test", 80), "client": ("test", 1),
    }  # fmt: skip


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, completion_body()), (CHAT, chat_body())])
async def test_an_answer_that_does_not_begin_in_time_is_504(
    path: str, body: dict[str, Any]
) -> None:
    client = FakeEngineClient([Script([5, 5, 2], pause_at=0)])
    app = make_app(client, deadlines=Deadlines(first_token_s=0.01))
    async with in_process(app) as http:
        for is_stream in (False, True):
            response = await http.post(path, json={**body, "stream": is_stream})
            assert response.status_code == 504
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("server_error", "deadline_exceeded")
    assert client.aborted == [0, 1]


async def test_a_stream_that_stops_ends_with_an_error_and_without_done() -> None:
    client = FakeEngineClient([Script([5, 5, 5, 2], pause_at=2)])
    app = make_app(client)
    async with in_process(app) as http:
        response = await http.post(COMPLETIONS, json=completion_body(stream=True, timeout_s=0.05))
    assert response.status_code == 200
    *_, last, end = response.text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert end == ""
    assert client.aborted == [0]


async def test_the_terms_of_a_request_reach_the_engine() -> None:
    client = FakeEngineClient([Script([5, 2])])
    app = make_app(
        client,
        has_priorities=True,
        deadlines=Deadlines(queue_s=20.0),
        key_limits={b"": KeyLimits(weight=2.0, queue_share=0.5)},
    )
    async with in_process(app) as http:
        await http.post(COMPLETIONS, json=completion_body(priority=-2, queue_timeout_s=3))
        await http.post(CHAT, json=chat_body())
    first, second = client.terms
    assert (first.priority, first.max_wait_s, first.weight, first.queue_share) == (
        -2,
        3.0,
        2.0,
        0.5,
    )
    assert (second.priority, second.max_wait_s) == (0, 20.0)


@pytest.mark.parametrize("value", [0, -1, "1", True])
@pytest.mark.parametrize("name", ["timeout_s", "queue_timeout_s"])
async def test_a_wrong_time_is_refused(name: str, value: Any) -> None:
    async with in_process(make_app(FakeEngineClient([Script([5, 2])]))) as http:
        response = await http.post(COMPLETIONS, json=completion_body(**{name: value}))
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


async def test_a_body_that_is_sure_to_be_refused_is_not_read() -> None:
    app = make_app(FakeEngineClient([Script([5])], is_full=True))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app(post(), never, send)
    assert sent[0]["status"] == 429
    assert (b"retry-after", b"7") in sent[0]["headers"]


async def test_a_long_answer_is_sent_in_parts() -> None:
    tokens = [5] * 500
    app = make_app(FakeEngineClient([Script([*tokens, 2])]))
    sent: list[bytes] = []
    body = json.dumps(completion_body(max_tokens=500, logprobs=5, n=16)).encode()
    requests = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return requests.pop() if requests else await never()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    await app(post(), receive, send)
    assert len(sent) > 1
    assert max(map(len, sent)) == PART_BYTES
    assert len(json.loads(b"".join(sent))["choices"]) == 16


async def test_what_a_key_has_had_counts_for_its_next_request() -> None:
    app = make_app(
        FakeEngineClient([Script([5] * 9 + [2])]), key_limits={b"": KeyLimits(tokens_per_minute=5)}
    )
    async with in_process(app) as http:
        answers = [await http.post(COMPLETIONS, json=completion_body()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["code"] == "key_limit"
