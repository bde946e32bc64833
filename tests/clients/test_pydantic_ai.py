"""https://pypi.org/project/pydantic-ai: agents with typed answers, over chats and responses."""

from typing import Any

import pytest

from tests.clients.asked import MODEL, Weather

pydantic_ai = pytest.importorskip("pydantic_ai")
# what clients leave open, and what they import, is theirs
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]

QUESTION = "What will the weather be in Paris?"


@pytest.fixture(params=["chats", "responses"])
def model(url: str, request: pytest.FixtureRequest) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if request.param == "chats" else OpenAIResponsesModel
    return kind(MODEL, provider=OpenAIProvider(base_url=url, api_key="none"))


async def test_a_text(model: Any) -> None:
    agent = pydantic_ai.Agent(model, model_settings={"max_tokens": 16})
    assert (await agent.run(QUESTION)).output


async def test_a_typed_answer_by_a_tool(model: Any) -> None:
    agent = pydantic_ai.Agent(model, output_type=Weather, model_settings={"max_tokens": 200})
    assert isinstance((await agent.run(QUESTION)).output, Weather)


async def test_a_typed_answer_by_a_schema(model: Any) -> None:
    wanted = pydantic_ai.NativeOutput(Weather)
    agent = pydantic_ai.Agent(model, output_type=wanted, model_settings={"max_tokens": 200})
    assert isinstance((await agent.run(QUESTION)).output, Weather)
