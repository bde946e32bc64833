"""Asks a server as users of LlamaIndex do: `python llama_index_client.py URL MODEL`.

It runs where LlamaIndex is installed and nothing of ours, and ends with an error if an answer is
not what was asked for.
"""

import asyncio
import sys
from importlib import import_module
from typing import Any, Literal

from pydantic import BaseModel

QUESTION = "What will the weather be in Paris?"
BEGINNING = "The capital of France is"


class Weather(BaseModel):
    """A forecast for a city."""

    city: Literal["Paris", "Oslo"]
    days: Literal[1, 2]


def get_weather(city: Literal["Paris", "Oslo"], days: Literal[1, 2]) -> str:
    """Forecasts."""
    return f"{city} {days}"


def main(url: str, model: str) -> None:
    """Ask in all ways."""
    llm = import_module("llama_index.llms.openai_like").OpenAILike(
        model=model, api_base=url, api_key="none", max_tokens=200, max_retries=0,
        is_chat_model=True, is_function_calling_model=True, should_use_structured_outputs=True,
    )  # fmt: skip
    short = import_module("llama_index.llms.openai_like").OpenAILike(
        model=model, api_base=url, api_key="none", max_tokens=16, max_retries=0
    )
    llms = import_module("llama_index.core.llms")
    messages = [llms.ChatMessage(role="user", content=QUESTION)]
    _check_texts(short, llm, messages)
    asyncio.run(_check_async(llm, messages))
    _check_tools(llm)
    _check_structured(llm)


def _check_texts(short: Any, llm: Any, messages: list[Any]) -> None:
    assert short.complete(BEGINNING).text
    streamed = list(short.stream_complete(BEGINNING))
    assert streamed[-1].text == "".join(each.delta for each in streamed)
    assert llm.chat(messages, max_tokens=16).message.content
    chunks = list(llm.stream_chat(messages, max_tokens=16))
    assert chunks[-1].message.content == "".join(each.delta for each in chunks)


async def _check_async(llm: Any, messages: list[Any]) -> None:
    answers = await asyncio.gather(*(llm.achat(messages, max_tokens=8) for _ in range(3)))
    assert all(each.message.content for each in answers)
    stream = await llm.astream_chat(messages, max_tokens=8)
    assert [chunk async for chunk in stream]


def _check_tools(llm: Any) -> None:
    tools = import_module("llama_index.core.tools")
    tool = tools.FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
    for call in llm.get_tool_calls_from_response(answer):
        assert call.tool_name == "get_weather"
        Weather.model_validate(call.tool_kwargs)
    assert answer.message


def _check_structured(llm: Any) -> None:
    prompts = import_module("llama_index.core.prompts")
    found = llm.structured_predict(Weather, prompts.PromptTemplate(QUESTION))
    assert isinstance(found, Weather)


if __name__ == "__main__":
    main(*sys.argv[1:])
