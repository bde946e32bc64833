"""What clients send along that asks for nothing, and what servers answer, can be sent."""

from typing import Any

import pytest

from tests.app.api.answers import BODIES, events, post
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

HI = {"role": "user", "content": "Hi"}
# messages as different servers answer them
ANSWERS: list[dict[str, Any]] = [
    {
        "role": "assistant", "content": "Hello", "refusal": None, "annotations": [],
        "tool_calls": [], "audio": None, "function_call": None,
    },
    {"role": "assistant", "content": "Hello", "reasoning": None, "reasoning_content": ""},
    {"role": "assistant", "content": None, "tool_calls": None},
    {"role": "assistant", "content": [{"type": "text", "text": "Hello", "annotations": []}]},
    {"role": "assistant", "content": "", "name": ""},
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"n": 3}, {"use_beam_search": True}])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_s_message_can_be_sent_back(
    answer: dict[str, Any], options: dict[str, Any]
) -> None:
    body = chat_body(messages=[HI, answer, HI], max_tokens=4, **options)
    await post(FakeEngineClient([Script([5])]), CHAT, body)


async def test_our_own_answers_can_be_sent_back() -> None:
    plain = await post(FakeEngineClient([Script([5])]), CHAT, chat_body())
    async with in_process(make_app(FakeEngineClient([Script([5])]))) as http:
        chunks = events((await http.post(CHAT, json=chat_body(stream=True))).text)
    for message in (plain["choices"][0]["message"], chunks[0]["choices"][0]["delta"]):
        await post(FakeEngineClient([Script([5])]), CHAT, chat_body(messages=[HI, message, HI]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto"},
        {"tools": [], "tool_choice": "none"},
        {"functions": [], "function_call": "auto"},
        {"response_format": {"type": "text", "json_schema": None}},
        {"metadata": {}, "documents": [], "stop": [], "logit_bias": {}, "modalities": ["text"]},
    ],
)
async def test_wishes_for_nothing_are_accepted(fields: dict[str, Any], stream: bool) -> None:
    await post(FakeEngineClient([Script([5])]), CHAT, chat_body(stream=stream, **fields))


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"include_usage": None}])
async def test_stream_options_that_want_nothing_need_no_stream(options: dict[str, Any]) -> None:
    for path, make in BODIES.items():
        await post(FakeEngineClient([Script([5])]), path, make(stream_options=options))


async def test_a_tool_choice_without_tools_must_ask_for_none() -> None:
    async with in_process(make_app(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(CHAT, json=chat_body(tools=[], tool_choice="required"))
    assert response.json()["error"]["param"] == "tool_choice"


async def test_unknown_fields_of_messages_can_be_reported_instead() -> None:
    app = make_app(FakeEngineClient([Script([5])]), unknown_parameters="ignore")
    async with in_process(app) as http:
        response = await http.post(CHAT, json=chat_body(messages=[{**HI, "mood": "x"}]))
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "messages.mood"


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"n": 3}, {"use_beam_search": True}])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_server_of_one_model_needs_no_name(path: str, options: dict[str, Any]) -> None:
    body = BODIES[path](**options)
    del body["model"]
    answer = await post(FakeEngineClient([Script([5])]), path, body)
    assert (answer[0] if "stream" in options else answer)["model"] == "tiny"


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"n": 3}, {"best_of": 2}])
async def test_a_seed_of_minus_one_is_a_fresh_draw(options: dict[str, Any]) -> None:
    client = FakeEngineClient([Script([5])])
    for _ in range(3):
        await post(client, COMPLETIONS, completion_body(seed=-1, **options))
    seeds = {sampling.seed for sampling in client.samplings}
    assert len(seeds) == 3
    assert min(seeds) >= 0
