"""https://pypi.org/project/anthropic: messages, tools, streams, counts of tokens."""

from typing import Any

import pytest

from tests.clients.asked import HI, MODEL, SCHEMA, assert_is_weather

anthropic = pytest.importorskip("anthropic")
# what clients leave open, and what they import, is theirs
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]

TOOL: Any = {"name": "get_weather", "description": "Forecasts.", "input_schema": SCHEMA}


@pytest.fixture
def client(url: str) -> Any:
    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)


def test_messages_plain_and_streamed(client: Any) -> None:
    greedy = {"temperature": 0}
    fields: Any = {"model": MODEL, "messages": HI, "max_tokens": 16, "extra_body": greedy}
    plain = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == plain.content[0].text == last.content[0].text
    assert plain.stop_reason == last.stop_reason == "max_tokens"
    assert last.usage.output_tokens == 16


async def test_messages_from_an_event_loop(url: str) -> None:
    base_url = url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="none") as client:
        answer = await client.messages.create(model=MODEL, messages=HI, max_tokens=8)
    assert answer.content[0].text


def test_tools(client: Any) -> None:
    fields: Any = {"model": MODEL, "max_tokens": 200, "tools": [TOOL]}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    plain = client.messages.create(**fields, messages=HI, tool_choice=choice)
    with client.messages.stream(**fields, messages=HI, tool_choice=choice) as stream:
        streamed = stream.get_final_message()
    for answer in (plain, streamed):
        assert answer.stop_reason == "tool_use"
        [call] = answer.content
        assert_is_weather(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    said = [
        *HI,
        {"role": "assistant", "content": streamed.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**{**fields, "max_tokens": 8}, messages=said).content


def test_tokens_are_counted(client: Any) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=HI, tools=[TOOL])
    used = client.messages.create(model=MODEL, messages=HI, tools=[TOOL], max_tokens=1).usage
    assert count.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_errors(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(
            model=MODEL, messages=HI, max_tokens=16, extra_body={"temperature": 7}
        )
    assert "temperature" in refused.value.body["error"]["message"]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", messages=HI, max_tokens=16)
