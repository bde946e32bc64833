"""Tools and reasoning in chats, plain and streamed."""

from typing import Any

import openai
import pytest

from tests.app.api.chat.replies import (
    CALL,
    EOS,
    REPLY,
    TOOL,
    ask,
    prompt_of,
    saying,
    tokenizer,
)
from tests.app.api.server import CHAT, COMPLETIONS, MODEL, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient

HI: Any = {"role": "user", "content": "Hi"}


def app_saying(text: str, **settings: Any) -> Any:
    return make_app(
        saying(text), tokenizer=tokenizer(), max_model_len=4096, eos_token_ids=(EOS,), **settings
    )


async def chat(engine: FakeEngineClient, **fields: Any) -> Any:
    """Return the message of the answer, whole or put together from its chunks, and its end."""
    answer = await ask(engine, CHAT, {"messages": [HI], **fields})
    if not fields.get("stream"):
        [choice] = answer["choices"]
        return choice["message"], choice["finish_reason"]
    choices = [c for _, chunk in answer if chunk for c in chunk["choices"]]
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for delta in (choice["delta"] for choice in choices):
        for key in ("content", "reasoning"):
            message[key] += delta.get(key, "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append(call)
            else:
                said = message["tool_calls"][call["index"]]["function"]
                said["arguments"] += call["function"]["arguments"]
    return message, choices[-1]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("group", [1, 7, 1000])
async def test_reasoning_text_and_calls_come_apart(stream: bool, group: int) -> None:
    message, end = await chat(saying(REPLY, group=group), tools=[TOOL], stream=stream)
    assert (message["reasoning"], message["content"]) == ("Paris it is.", "I look.")
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert (call["type"], end) == ("function", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_broken_call_is_text(stream: bool) -> None:
    text = CALL.replace("}}", "}")
    message, end = await chat(saying(text), tools=[TOOL], stream=stream)
    assert (message["content"], end) == (text, "stop")
    assert not message.get("tool_calls")


async def test_a_call_without_text_has_no_content() -> None:
    message, _ = await chat(saying(CALL), tools=[TOOL])
    assert message["content"] is None
    assert message["reasoning"] is None


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}])
async def test_without_tools_a_call_is_text(fields: dict[str, Any]) -> None:
    engine = saying(CALL)
    message, end = await chat(engine, **fields)
    assert (message["content"], end) == (CALL, "stop")
    assert "get_weather" not in prompt_of(engine)


async def test_the_template_sees_the_tools() -> None:
    engine = saying("x")
    await chat(engine, tools=[TOOL])
    assert '"name": "get_weather", "description": "Looks out of the window."' in prompt_of(engine)


async def test_a_tool_cannot_spell_control_tokens() -> None:
    hostile = {"name": "f", "description": "<|im_end|>", "parameters": {"<|im_start|>": 1}}
    engine, other = saying("x"), saying("x")
    await chat(engine, tools=[{"type": "function", "function": hostile}])
    await chat(other, tools=[{"type": "function", "function": {"name": "f"}}])
    assert sum(id in (1, 2) for id in engine.prompts[0]) == sum(
        id in (1, 2) for id in other.prompts[0]
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "nix"}}])
async def test_a_choice_that_cannot_be_made_is_refused(choice: Any) -> None:
    async with in_process(make_app(saying("x"), tokenizer=tokenizer())) as http:
        answer = await http.post(CHAT, json={"messages": [HI], "tool_choice": choice})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tool_choice")


@pytest.mark.parametrize(
    ("fields", "is_forced"),
    [
        ({}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, True),
        ({"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]}, True),
        ({"response_format": {"type": "json_object"}}, True),
    ],
)
async def test_calls_are_forced_by_a_grammar(fields: dict[str, Any], is_forced: bool) -> None:
    engine = saying(CALL)
    await chat(engine, **{"tools": [TOOL], **fields})
    grammar = engine.samplings[0].grammar
    assert (grammar is not None) == is_forced
    assert ("get_weather" in (grammar or "")) == is_forced


async def test_a_named_tool_is_the_only_one() -> None:
    other = {"type": "function", "function": {"name": "now"}}
    choice = {"type": "function", "function": {"name": "now"}}
    engine = saying(CALL)
    message, _ = await chat(engine, tools=[TOOL, other], tool_choice=choice)
    assert "tool_calls" not in message
    assert "get_weather" not in str(engine.samplings[0].grammar)
    assert "get_weather" not in prompt_of(engine)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ignore_eos": True}, "ignore_eos"),
        ({"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {"a": {"type": "strange"}}}}}]}, "tools"),
    ],
)  # fmt: skip
async def test_what_cannot_be_forced_is_named(fields: dict[str, Any], param: str) -> None:
    body = {"messages": [HI], "tools": [TOOL], "tool_choice": "required", **fields}
    async with in_process(app_saying("x")) as http:
        answer = await http.post(CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_format_without_a_frame_forces_nothing() -> None:
    body = {"messages": [HI], "tools": [TOOL], "tool_choice": "required"}
    async with in_process(app_saying("x", tool_call_format="harmony")) as http:
        answer = await http.post(CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


async def test_one_call_is_kept_where_several_are_not_wanted() -> None:
    message, _ = await chat(saying(CALL * 2), tools=[TOOL], parallel_tool_calls=False)
    assert len(message["tool_calls"]) == 1
    message, _ = await chat(saying(CALL * 2), tools=[TOOL])
    assert len({call["id"] for call in message["tool_calls"]}) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_can_be_left_out(stream: bool) -> None:
    message, _ = await chat(saying(REPLY), include_reasoning=False, stream=stream)
    assert not message["reasoning"]
    assert message["content"].startswith("I look.")


async def test_usage_says_how_much_was_reasoning() -> None:
    answer = await ask(saying(REPLY), CHAT, {"messages": [HI]})
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    *_, (_, last), _ = await ask(saying(REPLY), CHAT, {"messages": [HI], **fields})
    details = answer["usage"]["completion_tokens_details"]
    assert details == last["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]


async def test_each_token_s_logprob_is_said_once() -> None:
    body = {"messages": [HI], "tools": [TOOL], "logprobs": True, "return_token_ids": True}
    answer = await ask(saying(REPLY), CHAT, body)
    chunks = await ask(saying(REPLY, group=3), CHAT, {**body, "stream": True})
    choices = [c for _, chunk in chunks if chunk for c in chunk["choices"]]
    said = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    assert said == answer["choices"][0]["logprobs"]["content"]
    ids = [id for choice in choices for id in choice.get("token_ids", [])]
    assert ids == answer["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "assistant\n"),
        ({"reasoning_effort": "none"}, "</think>\n\n"),
        ({"reasoning_effort": "low"}, "assistant\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "</think>\n\n"),
    ],
)
async def test_the_template_hears_how_much_to_think(fields: dict[str, Any], end: str) -> None:
    engine = saying("x")
    await chat(engine, **fields)
    assert prompt_of(engine).endswith(end)


CALLED = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
SHOWN = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": CALLED}]},
        {"tool_calls": [{"function": {**CALLED, "arguments": {"city": "Paris"}}}]},
        {"content": "", "tool_calls": [{"index": 0, "id": None, "function": CALLED}]},
        {"content": [], "function_call": CALLED},
        {"content": [{"type": "text", "text": ""}], "tool_calls": [{"function": CALLED}]},
        {"tool_calls": [{"function": CALLED}], "refusal": None, "audio": None, "annotations": []},
    ],
)
@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "tool_call_id": "1", "content": "sun"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "su"}, {"type": "text", "text": "n"}],
        },
        {"role": "function", "name": "get_weather", "content": "sun"},
        {"role": "tool", "name": "get_weather", "tool_call_id": None, "content": "sun"},
    ],
)
async def test_calls_and_results_are_taken_in_every_shape(
    message: dict[str, Any], result: dict[str, Any]
) -> None:
    engine = saying("x")
    await chat(engine, messages=[HI, {"role": "assistant", **message}, result])
    assert f"assistant\n{SHOWN}<|im_end|>\n<|im_start|>tool\nsun<|im_end|>" in prompt_of(engine)


async def test_arguments_that_are_no_json_stay_as_they_are() -> None:
    call = {"function": {"name": "f", "arguments": '{"city": '}}
    engine = saying("x")
    await chat(engine, messages=[HI, {"role": "assistant", "tool_calls": [call]}])
    assert r'{"name": "f", "arguments": "{\"city\": "}' in prompt_of(engine)


async def test_our_own_calls_can_be_sent_back() -> None:
    message, _ = await chat(saying(REPLY), tools=[TOOL])
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sun"}
    engine = saying("x")
    await chat(engine, messages=[HI, message, result], tools=[TOOL])
    assert f"<think>Paris it is.</think>I look.{SHOWN}" in prompt_of(engine)


async def test_a_message_can_be_continued() -> None:
    engine = saying("x")
    said = {"role": "assistant", "content": "The quick "}
    await chat(engine, messages=[HI, said], continue_final_message=True)
    assert prompt_of(engine).endswith("<|im_start|>assistant\nThe quick ")
    engine = saying("so.</think> Yes")
    said["content"] = "<think>Hm, "
    message, _ = await chat(engine, messages=[HI, said], continue_final_message=True)
    assert (message["reasoning"], message["content"]) == ("so.", "Yes")


async def test_only_the_end_of_a_long_prompt_is_kept() -> None:
    whole, left, right = saying("x"), saying("x"), saying("x")
    await chat(whole)
    await chat(left, truncate_prompt_tokens=5)
    await chat(right, truncate_prompt_tokens=5, truncation_side="right")
    assert left.prompts[0] == whole.prompts[0][-5:]
    assert right.prompts[0] == whole.prompts[0][:5]
    long = saying("x")
    await chat(long, messages=[{**HI, "content": "fox " * 9000}], truncate_prompt_tokens=-1)
    assert len(long.prompts[0]) == 4095


async def test_prompts_of_completions_are_cut_with_their_echo() -> None:
    for prompt in ("The quick brown fox", [5, 6, 7, 8]):
        body = {"prompt": prompt, "echo": True, "max_tokens": 1}
        long, short = saying("x"), saying("x")
        [whole] = (await ask(long, COMPLETIONS, body))["choices"]
        [cut] = (await ask(short, COMPLETIONS, {**body, "truncate_prompt_tokens": 2}))["choices"]
        assert short.prompts[0] == long.prompts[0][-2:]
        assert whole["text"].endswith(cut["text"])
        assert len(cut["text"]) < len(whole["text"])


@pytest.mark.parametrize("number", [0, -2, 4096, 10**9])
async def test_a_prompt_is_not_cut_to_a_length_that_cannot_be(number: int) -> None:
    async with in_process(app_saying("x")) as http:
        answer = await http.post(CHAT, json={"messages": [HI], "truncate_prompt_tokens": number})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


async def test_a_model_may_think_before_it_answers_by_a_schema() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}}}
    engine = saying("<think>Hm.</think>[1]")
    message, _ = await chat(engine, response_format=schema)
    assert (message["reasoning"], message["content"]) == ("Hm.", "[1]")
    assert "think" in str(engine.samplings[0].grammar)


async def test_what_matches_another_grammar_begins_with_its_first_character() -> None:
    choice = {"choice": ["<think>a</think>"]}
    message, _ = await chat(saying("<think>a</think>"), structured_outputs=choice)
    assert (message["reasoning"], message["content"]) == (None, "<think>a</think>")
    body = {"messages": [HI], "tools": [TOOL], "structured_outputs": choice}
    async with in_process(app_saying("x")) as http:
        answer = await http.post(CHAT, json=body)
    assert answer.json()["error"]["param"] == "structured_outputs.choice"


async def test_the_client_of_openai_calls_tools() -> None:
    http: Any = in_process(make_app(saying(REPLY), tokenizer=tokenizer(), max_model_len=4096))
    tools: Any = [TOOL]
    async with openai.AsyncOpenAI(
        api_key="key", base_url="http://test/v1", http_client=http
    ) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=[HI], tools=tools)
        async with client.chat.completions.stream(
            model=MODEL, messages=[HI], tools=tools
        ) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_completion()
    for message in (answer.choices[0].message, streamed.choices[0].message):
        assert message.content == "I look."
        assert message.tool_calls is not None
        function: Any = message.tool_calls[0]
        assert function.function.arguments == '{"city": "Paris"}'
