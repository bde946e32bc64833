"""An engine that says a text, and clients of the chat, response and message APIs."""

import json
from typing import Any

from app.text.tokenizer import Tokenizer
from tests.app.api.server import in_process, make_app
from tests.app.text.tokenizers import byte_level_backend
from tests.fakes.scripted_engine import FakeEngineClient, Script

EOS = 2
# says that calls are written as Hermes does, and that a model thinks aloud
TEMPLATE = (
    "{# <think></think> #}"
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} "
    '<tool_call>{"name": ...}</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
WEATHER = {
    "name": "get_weather",
    "description": "Looks out of the window.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOL: dict[str, Any] = {"type": "function", "function": WEATHER}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
REPLY = f"<think>\nParis it is.\n</think>\n\nI look.\n{CALL}"


def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_backend(), {"eos_token": "<|im_end|>"}, TEMPLATE)


def saying(text: str, *, group: int = 1, num_cached: int = 0) -> FakeEngineClient:
    tokens = tokenizer().encode(text).tolist()
    return FakeEngineClient([Script([*tokens, EOS], group=group, num_cached=num_cached)])


def prompt_of(engine: FakeEngineClient) -> str:
    return tokenizer().decode(engine.prompts[-1])


async def ask(engine: FakeEngineClient, path: str, body: dict[str, Any]) -> Any:
    """Return the answer's object, or the (name, object) of each event of its stream."""
    app = make_app(engine, tokenizer=tokenizer(), max_model_len=4096, eos_token_ids=(EOS,))
    async with in_process(app) as http:
        response = await http.post(path, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return response.json()
    return [_event(text) for text in response.text.removesuffix("\n\n").split("\n\n")]


def _event(text: str) -> tuple[str, Any]:
    *names, data = text.split("\n")
    content = data.removeprefix("data: ")
    name = names[0].removeprefix("event: ") if names else ""
    return name, None if content == "[DONE]" else json.loads(content)
