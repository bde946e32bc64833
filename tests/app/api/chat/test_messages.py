"""POST /v1/messages and its count of tokens, in Anthropic's shape."""

import hashlib
from typing import Any

import pytest

from engine.errors import Overloaded
from tests.app.api.chat.replies import REPLY, WEATHER, ask, prompt_of, saying, tokenizer
from tests.app.api.server import in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

PATH = "/v1/messages"
HI: Any = {"role": "user", "content": "Hi"}
TOOL: Any = {"name": "get_weather", "input_schema": WEATHER["parameters"]}


async def answer_to(text: str = REPLY, **fields: Any) -> Any:
    body = {"messages": [HI], "max_tokens": 500, "tools": [TOOL], **fields}
    return await ask(saying(text, num_cached=3), PATH, body)


async def test_an_answer_is_blocks() -> None:
    answer = await answer_to()
    thought, text, call = answer["content"]
    assert thought == {"type": "thinking", "thinking": "Paris it is.", "signature": ""}
    assert text == {"type": "text", "text": "I look."}
    assert (call["type"], call["input"]) == ("tool_use", {"city": "Paris"})
    assert (answer["stop_reason"], answer["type"]) == ("tool_use", "message")
    assert answer["usage"]["cache_read_input_tokens"] == 3


async def test_events_come_in_the_published_order() -> None:
    events = await answer_to(stream=True)
    kinds = list(dict.fromkeys(f"{event.get('index', '')} {name}" for name, event in events))
    block = ("content_block_start", "content_block_delta", "content_block_stop")
    assert kinds == [
        " message_start",
        *(f"{index} {name}" for index in range(3) for name in block),
        " message_delta",
        " message_stop",
    ]
    assert events[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    pieces = [event["delta"] for name, event in events if name == "content_block_delta"]
    assert "".join(piece.get("thinking", "") for piece in pieces) == "Paris it is."
    assert "".join(piece.get("text", "") for piece in pieces) == "I look."
    assert "".join(piece.get("partial_json", "") for piece in pieces) == '{"city": "Paris"}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "stop"),
    [
        ("The quick", {}, ("end_turn", None)),
        ("The quick brown fox", {"max_tokens": 2}, ("max_tokens", None)),
        ("The quick brown", {"stop_sequences": [" br"]}, ("stop_sequence", " br")),
    ],
)
async def test_the_end_is_named(
    text: str, fields: dict[str, Any], stop: tuple[str, str | None], stream: bool
) -> None:
    answer = await answer_to(text, stream=stream, **fields)
    end = answer[-2][1]["delta"] if stream else answer
    assert (end["stop_reason"], end["stop_sequence"]) == stop


async def test_a_conversation_is_that_of_a_chat() -> None:
    engine, answer = saying("x"), await answer_to()
    result = {
        "type": "tool_result",
        "tool_use_id": answer["content"][2]["id"],
        "content": [{"type": "text", "text": "sun"}],
    }
    failed = {"type": "tool_result", "tool_use_id": "2", "content": "rain", "is_error": True}
    text = {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}
    messages = [
        HI,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result, failed, text]},
    ]
    system = [{"type": "text", "text": "Be brief."}]
    await ask(engine, PATH, {"messages": messages, "system": system, "max_tokens": 5})
    turns = [turn.split("\n", 1) for turn in prompt_of(engine).split("<|im_start|>")[1:]]
    roles = [role for role, _ in turns]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "assistant"]
    assert turns[2][1].startswith("<think>Paris it is.</think>I look.<tool_call>{")
    assert (turns[3][1], turns[4][1]) == ("sun<|im_end|>\n", "Error: rain<|im_end|>\n")


async def test_an_answer_that_the_client_has_begun_is_gone_on_with() -> None:
    engine = saying("x")
    begun = {"role": "assistant", "content": "The quick"}
    await ask(engine, PATH, {"messages": [HI, begun], "max_tokens": 5})
    assert prompt_of(engine).endswith("assistant\nThe quick")


async def test_thinking_can_be_turned_off() -> None:
    engine = saying("x")
    body = {"messages": [HI], "max_tokens": 5, "thinking": {"type": "disabled"}}
    await ask(engine, PATH, body)
    assert prompt_of(engine).endswith("</think>\n\n")


async def test_tokens_are_counted_as_they_are_used() -> None:
    engine = saying("x")
    body = {"messages": [HI], "tools": [TOOL], "system": "Be brief."}
    count = await ask(engine, f"{PATH}/count_tokens", body)
    await ask(engine, PATH, {**body, "max_tokens": 5})
    assert count == {"input_tokens": len(engine.prompts[-1])}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, None),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"temperature": 5}, "temperature"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"mood": 1}, "mood"),
    ],
)
async def test_errors_have_anthropic_s_shape(fields: dict[str, Any], param: str | None) -> None:
    async with in_process(make_app(saying("x"), tokenizer=tokenizer())) as http:
        answer = await http.post(PATH, json={"messages": [HI], "max_tokens": 5, **fields})
    assert answer.status_code == 400
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    if param is not None:
        assert body["error"]["param"] == param


async def test_an_overload_is_a_rate_limit() -> None:
    full = FakeEngineClient([], refusal=Overloaded("the queue is full", retry_after_s=2.0))
    async with in_process(make_app(full, tokenizer=tokenizer())) as http:
        answer = await http.post(PATH, json={"messages": [HI], "max_tokens": 5})
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert answer.headers["retry-after"] == "2"


async def test_a_stream_that_breaks_ends_with_an_error() -> None:
    engine = FakeEngineClient([Script([5, 6], error=RuntimeError("inner"), error_at=1)])
    events = await ask(engine, PATH, {"messages": [HI], "max_tokens": 5, "stream": True})
    name, event = events[-1]
    assert (name, event["error"]["type"]) == ("error", "api_error")


async def test_the_key_of_anthropic_s_clients_counts() -> None:
    digest = hashlib.sha256(b"key").digest()
    app = make_app(saying("x"), tokenizer=tokenizer(), api_key_sha256=(digest,))
    body = {"messages": [HI], "max_tokens": 5}
    async with in_process(app) as http:
        good = await http.post(PATH, json=body, headers={"x-api-key": "key"})
        bad = await http.post(PATH, json=body, headers={"x-api-key": "no"})
        other = await http.get("/v1/models", headers={"x-api-key": "key"})
        both = await http.post(
            PATH, json=body, headers={"x-api-key": "key", "authorization": "Bearer no"}
        )
    assert (good.status_code, bad.status_code) == (200, 401)
    assert (other.status_code, both.status_code) == (401, 401)
    assert bad.json()["error"]["type"] == "authentication_error"
