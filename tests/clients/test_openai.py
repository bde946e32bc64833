"""https://pypi.org/project/openai: chats, tools, parsed answers, responses; sync and async."""

import json
from typing import Any

import openai
import pytest

from tests.clients.asked import HI, MODEL, SCHEMA, TOOL, Weather, assert_is_weather

# what clients leave open, and what they import, is theirs
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]

RESPONSE_TOOL: Any = {"type": "function", **TOOL["function"], "strict": True}


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


def test_chat_plain_and_streamed(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": HI, "max_tokens": 16, "temperature": 0}
    plain = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == plain.choices[0].message.content


async def test_chat_from_an_event_loop(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HI, max_tokens=8)
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    fields: Any = {"model": MODEL, "messages": HI, "tools": [TOOL], "tool_choice": choice,
                   "parallel_tool_calls": False, "temperature": 0}  # fmt: skip
    plain = client.chat.completions.create(**fields)
    with client.chat.completions.stream(**fields) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    for message in (plain.choices[0].message, streamed.choices[0].message):
        assert message.tool_calls
        call: Any = message.tool_calls[0]
        assert_is_weather(json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
    said: Any = [*HI, message.model_dump(), result]
    last = client.chat.completions.create(model=MODEL, messages=said, max_tokens=16)
    assert last.choices[0].message.content


def test_parsed_answers(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": HI}
    answer = client.chat.completions.parse(**fields, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    tool = openai.pydantic_function_tool(Weather)
    called = client.chat.completions.parse(**fields, tools=[tool], tool_choice="required")
    message: Any = called.choices[0].message
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Weather)


def test_responses(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "input": HI, "temperature": 0, "max_output_tokens": 16}
    plain = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == plain.output_text
    assert text
    parsed = client.responses.parse(model=MODEL, input=HI, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)


def test_tools_of_responses(client: openai.OpenAI) -> None:
    first: Any = client.responses.create(
        model=MODEL, input=HI, tools=[RESPONSE_TOOL], tool_choice="required"
    )
    call = first.output[-1]
    assert_is_weather(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    said: Any = [*HI, *first.output, result]
    last = client.responses.create(model=MODEL, input=said, max_output_tokens=16)
    assert last.output_text


def test_schemas(client: openai.OpenAI) -> None:
    schema: Any = {"name": "weather", "schema": SCHEMA, "strict": True}
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, response_format={"type": "json_schema", "json_schema": schema}
    )
    assert_is_weather(json.loads(answer.choices[0].message.content or ""))


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Hi", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model=MODEL, input=["A pagoda.", "A tower."])
    floats = client.embeddings.create(model=MODEL, input="A pagoda.", encoding_format="float")
    assert [len(item.embedding) for item in found.data] == [576, 576]
    # vectors of one text differ by what else was in the batch only
    assert found.data[0].embedding == pytest.approx(floats.data[0].embedding, abs=0.05)
