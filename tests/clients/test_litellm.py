"""https://pypi.org/project/litellm: chats and tools through its OpenAI provider."""

import json
from typing import Any

import pytest

from tests.clients.asked import HI, MODEL, TOOL, assert_is_weather

pytest.importorskip("litellm")
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]


def complete(url: str, **fields: Any) -> Any:
    import litellm

    body = {"model": f"openai/{MODEL}", "messages": HI, "api_base": url, "api_key": "none"}
    return litellm.completion(**{**body, **fields})


def test_answers_plain_and_streamed(url: str) -> None:
    assert complete(url, max_tokens=16).choices[0].message.content
    chunks = complete(url, max_tokens=16, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_tools(url: str) -> None:
    message = complete(url, tools=[TOOL], tool_choice="required").choices[0].message
    assert_is_weather(json.loads(message.tool_calls[0].function.arguments))
