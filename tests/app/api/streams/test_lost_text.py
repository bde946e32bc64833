"""Text that the tokenizer cannot hold is refused by name, never dropped."""

from typing import Any

import pytest
from tokenizers import normalizers

from app.text.tokenizer import Tokenizer
from tests.app.api.server import CHAT, COMPLETIONS, in_process, make_app
from tests.app.text.tokenizers import CHATML, byte_level_backend, lossy_backend
from tests.fakes.scripted_engine import FakeEngineClient, Script

LOST = {"U+0004": "a\x04b", "U+46131": "\U00046131"}
HI = {"role": "user", "content": "the fox"}


def bodies(text: str) -> list[tuple[str, dict[str, Any], str]]:
    """Path, body and the field that the error names."""
    part = {"type": "text", "text": text}
    return [
        (COMPLETIONS, {"prompt": text}, "prompt"),
        (COMPLETIONS, {"prompt": text, "echo": True, "max_tokens": 0}, "prompt"),
        (COMPLETIONS, {"prompt": ["x", text]}, "prompt[1]"),
        (CHAT, {"messages": [HI, {"role": "user", "content": text}]}, "messages[1].content"),
        (CHAT, {"messages": [{"role": "user", "content": [part]}]}, "messages[0].content"),
        (CHAT, {"messages": [HI], "bad_words": ["x", text]}, "bad_words[1]"),
        (COMPLETIONS, {"prompt": "x", "bad_words": [text]}, "bad_words[0]"),
        (COMPLETIONS, {"prompt": "x", "stop": text}, "stop[0]"),
        ("/tokenize", {"prompt": text}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": text}]}, "messages[0].content"),
        ("/v1/prefixes", {"name": "a", "prompt": text}, "prompt"),
    ]


def translated_bodies(text: str) -> list[tuple[str, dict[str, Any], str]]:
    """Bodies of which chats are made whose messages have other numbers."""
    said, tool = {"role": "user", "content": text}, {"name": "f", "description": text}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": f'{{"a": "{text}"}}'}
    output = {"type": "function_call_output", "call_id": "c", "output": text}
    responses: list[tuple[Any, str]] = [
        ({"input": text}, "input"),
        ({"input": "x", "instructions": text}, "instructions"),
        ({"input": [HI, said], "instructions": "x"}, "input[1].content"),
        ({"input": [HI, call]}, "input[1]"),
        ({"input": [HI, call | {"arguments": "{}"}, output]}, "input[2].output"),
        ({"input": "x", "tools": [{"type": "function", **tool}]}, "tools[0]"),
    ]
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    messages: list[tuple[Any, str]] = [
        ({"messages": [said]}, "messages[0].content"),
        ({"messages": [HI], "system": text}, "system"),
        ({"messages": [HI, said], "system": "x"}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [result] * 3}, said]}, "messages[1].content"),
        ({"messages": [HI], "tools": [{**tool, "input_schema": {}}]}, "tools[0]"),
    ]
    return [
        *(("/v1/responses", body, field) for body, field in responses),
        *(("/v1/messages", {**body, "max_tokens": 2}, field) for body, field in messages),
        *(("/v1/messages/count_tokens", body, field) for body, field in messages),
    ]


@pytest.mark.parametrize("kind", ["bytes", "dropped", "unknown"])
@pytest.mark.parametrize("options", [{}, {"stream": True}, {"n": 3}, {"use_beam_search": True}])
@pytest.mark.parametrize("name", LOST)
async def test_lost_text_is_refused_with_its_character(
    name: str, options: dict[str, Any], kind: str
) -> None:
    client = FakeEngineClient([Script([5])])
    tokenizer = Tokenizer(lossy_backend(kind), {}, CHATML)
    async with in_process(make_app(client, tokenizer=tokenizer)) as http:
        for path, body, field in bodies(LOST[name]):
            generates = path in (COMPLETIONS, CHAT) and "bad_words" not in body
            response = await http.post(path, json={**body, **(options if generates else {})})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, field)
            assert name in error["message"]
    assert client.prompts == []


@pytest.mark.parametrize("name", LOST)
async def test_lost_text_is_named_as_the_client_calls_it(name: str) -> None:
    tokenizer = Tokenizer(lossy_backend("bytes"), {}, CHATML)
    app = make_app(FakeEngineClient([Script([5])]), tokenizer=tokenizer)
    async with in_process(app) as http:
        for path, body, field in translated_bodies(LOST[name]):
            error = (await http.post(path, json=body)).json()["error"]
            assert error["param"] == field
            assert error["message"].startswith(f"{field} has the character {name}")


async def test_a_bad_word_without_tokens_is_refused() -> None:
    backend = lossy_backend("bytes")
    backend.normalizer = normalizers.Strip()
    app = make_app(FakeEngineClient([Script([5])]), tokenizer=Tokenizer(backend, {}, None))
    async with in_process(app) as http:
        response = await http.post(COMPLETIONS, json={"prompt": "x", "bad_words": ["a", "\n"]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "bad_words[1]"


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Lowercase()])
@pytest.mark.parametrize("options", [{}, {"logprobs": 0}, {"max_tokens": 0, "logprobs": 1}])
async def test_the_echo_is_the_client_s_own_text(
    options: dict[str, Any], normalizer: normalizers.Normalizer | None
) -> None:
    backend = type(byte_level_backend()).from_str(byte_level_backend().to_str())
    if normalizer is not None:
        backend.normalizer = normalizer
    app = make_app(FakeEngineClient([Script([5])]), tokenizer=Tokenizer(backend, {}, None))
    text = "The e\u0301 FOX \x04 \U00046131"
    async with in_process(app) as http:
        body = {"prompt": text, "echo": True, "max_tokens": 1, **options}
        [choice] = (await http.post(COMPLETIONS, json=body)).json()["choices"]
    assert choice["text"].startswith(text)
    if choice["logprobs"]:
        assert "".join(choice["logprobs"]["tokens"]).startswith(text)
