"""POST /v1/responses: items whole, and the events by which they grow."""

from typing import Any

import openai
import pytest

from tests.app.api.chat.replies import REPLY, WEATHER, ask, prompt_of, saying, tokenizer
from tests.app.api.server import MODEL, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

PATH = "/v1/responses"
TOOL: Any = {"type": "function", **WEATHER}


async def respond(text: str = REPLY, **fields: Any) -> Any:
    return await ask(saying(text, num_cached=3), PATH, {"input": "Hi", "tools": [TOOL], **fields})


def without_ids(item: Any) -> Any:
    if isinstance(item, dict):
        return {k: without_ids(v) for k, v in item.items() if k not in ("id", "call_id")}
    return [without_ids(inner) for inner in item] if isinstance(item, list) else item


async def test_an_answer_is_items() -> None:
    answer = await respond()
    reasoning, message, call = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Paris it is."}]
    assert message["content"][0]["text"] == "I look."
    assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Paris"}')
    assert (answer["status"], answer["object"]) == ("completed", "response")
    assert answer["usage"]["input_tokens_details"] == {"cached_tokens": 3}
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert len({item["id"] for item in answer["output"]}) == 3


async def test_events_come_in_the_published_order() -> None:
    events = await respond(stream=True)
    names = [name for name, _ in events]
    assert names == [event["type"] for _, event in events]
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(f"{event.get('output_index', '')} {name}" for name, event in events))
    added, part = "response.output_item.added", "response.content_part"
    done = "response.output_item.done"
    thought, said = "response.reasoning_text", "response.output_text"
    called = "response.function_call_arguments"
    assert kinds == [
        " response.created", " response.in_progress",
        f"0 {added}", f"0 {part}.added", f"0 {thought}.delta", f"0 {thought}.done",
        f"0 {part}.done", f"0 {done}",
        f"1 {added}", f"1 {part}.added", f"1 {said}.delta", f"1 {said}.done", f"1 {part}.done",
        f"1 {done}",
        f"2 {added}", f"2 {called}.delta", f"2 {called}.done", f"2 {done}",
        " response.completed",
    ]  # fmt: skip


async def test_streamed_items_are_those_of_a_whole_answer() -> None:
    whole, events = await respond(), await respond(stream=True)
    last = events[-1][1]["response"]
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert last["usage"] == whole["usage"]
    items = [event["item"] for name, event in events if name == "response.output_item.done"]
    assert items == last["output"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_off_is_incomplete(stream: bool) -> None:
    answer = await respond("The quick brown fox", max_output_tokens=3, stream=stream)
    if stream:
        assert answer[-1][0] == "response.incomplete"
        answer = answer[-1][1]["response"]
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["status"] == "incomplete"


async def test_a_conversation_is_that_of_a_chat() -> None:
    engine = saying("x")
    answer = await respond()
    sent = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        *answer["output"],
        {
            "type": "function_call_output",
            "call_id": answer["output"][2]["call_id"],
            "output": [{"type": "input_text", "text": "sun"}],
        },
    ]
    await ask(engine, PATH, {"input": sent, "instructions": "Be brief."})
    turns = [turn.split("\n", 1) for turn in prompt_of(engine).split("<|im_start|>")[1:]]
    assert [role for role, _ in turns] == ["system", "user", "assistant", "tool", "assistant"]
    assert turns[2][1].startswith("<think>Paris it is.</think>I look.<tool_call>{")
    assert turns[3][1] == "sun<|im_end|>\n"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"store": True}, "store", "unsupported_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0]", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "unsupported_parameter",
        ),
        ({"input": "fox " * 9000}, "input", "context_length_exceeded"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "context_length_exceeded"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "nix"}, "tools": [TOOL]}, None, None),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"mood": 1}, "mood", "unknown_parameter"),
    ],
)
async def test_a_bad_field_is_named_as_the_client_knows_it(
    fields: dict[str, Any], param: str | None, code: str | None
) -> None:
    app = make_app(saying("x"), tokenizer=tokenizer(), max_model_len=4096)
    async with in_process(app) as http:
        answer = await http.post(PATH, json={"input": "Hi", **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    if param is not None:
        assert (error["param"], error["code"]) == (param, code)
        assert "messages" not in error["message"]


async def test_a_stream_that_breaks_ends_with_an_error() -> None:
    engine = FakeEngineClient([Script([5, 6], error=RuntimeError("inner"), error_at=1)])
    events = await ask(engine, PATH, {"input": "Hi", "stream": True})
    name, event = events[-1]
    assert (name, event["type"], event["code"]) == ("error", "error", "internal_error")


async def test_the_client_of_openai_reads_it() -> None:
    http: Any = in_process(make_app(saying(REPLY), tokenizer=tokenizer(), max_model_len=4096))
    async with openai.AsyncOpenAI(
        api_key="key", base_url="http://test/v1", http_client=http
    ) as client:
        answer = await client.responses.create(model=MODEL, input="Hi", tools=[TOOL])
        async with client.responses.stream(model=MODEL, input="Hi", tools=[TOOL]) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_response()
    for response in (answer, streamed):
        assert response.output_text == "I look."
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
