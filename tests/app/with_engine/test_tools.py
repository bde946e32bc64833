"""Calls that are forced, by a tiny model that says anything."""

import json
from typing import Any

import jsonschema
import pytest
from starlette.applications import Starlette

from tests.app.api.server import CHAT, chat_body, in_process, make_app
from tests.app.with_engine.reference import EOS
from tests.fakes.inline_engine import InlineEngineClient

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "boolean"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_WEATHER = {"name": "get_weather", "parameters": _SCHEMA, "strict": True}
_NOW = {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}
_TOOLS: Any = [{"type": "function", "function": function} for function in (_WEATHER, _NOW)]
_NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module", params=["smollm2", "hermes", "llama3_json", "mistral"])
def app(client: InlineEngineClient, request: pytest.FixtureRequest) -> Starlette:
    return make_app(client, eos_token_ids=(EOS,), tool_call_format=request.param)


@pytest.mark.in_turn
@pytest.mark.parametrize("choice", ["required", _NAMED])
async def test_a_forced_call_is_one_of_a_tool_that_there_is(app: Starlette, choice: Any) -> None:
    body = chat_body(
        tools=_TOOLS, tool_choice=choice, parallel_tool_calls=False, n=8, temperature=1.2, seed=1,
        max_tokens=150, messages=[{"role": "user", "content": "Hi"}], truncate_prompt_tokens=200,
    )  # fmt: skip
    async with in_process(app) as http:
        answer = (await http.post(CHAT, json=body)).json()
    ended = [choice for choice in answer["choices"] if choice["finish_reason"] != "length"]
    assert ended
    for done in ended:
        assert done["finish_reason"] == "tool_calls"
        [call] = done["message"]["tool_calls"]
        function = call["function"]
        assert function["name"] in (["get_weather"] if choice == _NAMED else ["get_weather", "now"])
        if function["name"] == "get_weather":
            jsonschema.validate(json.loads(function["arguments"]), _SCHEMA)
        assert done["message"]["content"] is None
