"""https://pypi.org/project/langchain-openai: ChatOpenAI with tools and structured output."""

from typing import Any

import pytest

from tests.clients.asked import MODEL, TOOL, Weather, assert_is_weather

langchain_openai = pytest.importorskip("langchain_openai")
# what clients leave open, and what they import, is theirs
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]

QUESTION = "What will the weather be in Paris?"


@pytest.fixture(params=[False, True], ids=["chats", "responses"])
def chat(url: str, request: pytest.FixtureRequest) -> Any:
    return langchain_openai.ChatOpenAI(
        model=MODEL, base_url=url, api_key="none", max_tokens=200, max_retries=0,
        use_responses_api=request.param,
    )  # fmt: skip


def test_answers_plain_and_streamed(chat: Any) -> None:
    short = chat.bind(max_tokens=16)
    assert short.invoke(QUESTION).text
    assert "".join(chunk.text for chunk in short.stream(QUESTION))


def test_tools(chat: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    forced = chat.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
    answer = forced.invoke(QUESTION)
    [call] = answer.tool_calls
    assert_is_weather(call["args"])
    chunks = list(forced.stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert_is_weather(whole.tool_calls[0]["args"])
    result = ToolMessage("Sunny.", tool_call_id=call["id"])
    said = [HumanMessage(QUESTION), answer, result]
    assert chat.bind(max_tokens=16).invoke(said).text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: Any, method: str) -> None:
    answer = chat.with_structured_output(Weather, method=method).invoke(QUESTION)
    assert isinstance(answer, Weather)
