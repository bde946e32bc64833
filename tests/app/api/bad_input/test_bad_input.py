"""What must not reach the engine, and what the client reads instead."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from app.text.tokenizer import Tokenizer
from tests.app.api.answers import BODIES
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body, in_process
from tests.app.api.server import make_app as build
from tests.app.text.tokenizers import byte_level_backend
from tests.fakes.scripted_engine import FakeEngineClient, Script


async def test_depth_of_32_is_parsed() -> None:
    body = b'{"a":' + b"[" * 31 + b"]" * 31 + b"}"
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(
            COMPLETIONS, content=body, headers={"content-type": "application/json"}
        )
    assert response.json()["error"]["code"] == "unknown_parameter"


async def test_the_last_of_equal_keys_wins() -> None:
    client = FakeEngineClient([Script([5])])
    body = json.dumps(completion_body()).replace("{", '{"max_tokens":0,', 1)
    body = body.replace("}", ',"max_tokens":3}')
    async with in_process(build(client)) as http:
        response = await http.post(
            COMPLETIONS, content=body, headers={"content-type": "application/json"}
        )
    assert response.status_code == 200
    assert client.samplings[0].max_tokens == 3


async def test_context_errors_state_both_numbers() -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        prompt = await http.post(COMPLETIONS, json=completion_body(prompt=[1] * 600))
        output = await http.post(COMPLETIONS, json=completion_body(max_tokens=700))
    assert "512" in prompt.text
    assert "600" in prompt.text
    assert "512" in output.text
    assert "700" in output.text


async def test_stream_options_need_a_stream() -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(CHAT, json=chat_body(stream_options={"include_usage": True}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


async def test_the_nearest_known_field_is_suggested() -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(CHAT, json=chat_body(max_token=3))
    assert "max_tokens" in response.json()["error"]["message"]


async def test_errors_do_not_repeat_what_a_client_made_up() -> None:
    name = "secret prompt\r\nx: y"
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        for body in (
            completion_body(**{name: 1}),
            chat_body(metadata={name: 1}),
            chat_body(messages=[{"role": "user", "content": "x", name: 1}]),
            chat_body(messages=[{"role": name, "content": name}]),
        ):
            path = COMPLETIONS if "prompt" in body else CHAT
            response = await http.post(path, json=body)
            assert response.status_code == 400
            assert "secret" not in response.text


async def test_unknown_fields_can_be_reported_instead() -> None:
    app = build(FakeEngineClient([Script([5])]), unknown_parameters="ignore")
    async with in_process(app) as http:
        response = await http.post(
            COMPLETIONS, json=completion_body(novel=1, user="u", **{"a\r\nb": 1})
        )
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "user, novel"


NEUTRAL = {
    "n": 1,
    "best_of": 1,
    "use_beam_search": False,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "min_tokens": 0,
    "echo": False,
    "bad_words": [],
    "response_format": {"type": "text"},
    "prompt_logprobs": None,
    "priority": 0,
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_values_that_ask_for_nothing_are_accepted(path: str) -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(path, json=BODIES[path](**NEUTRAL))
    assert response.status_code == 200
    assert "x-ignored-parameters" not in response.headers


async def test_a_prompt_without_tokens_is_refused() -> None:
    backend = Backend.from_str(byte_level_backend().to_str())
    backend.normalizer = normalizers.Strip()
    app = build(FakeEngineClient([Script([5])]), tokenizer=Tokenizer(backend, {}, None))
    async with in_process(app) as http:
        response = await http.post(COMPLETIONS, json=completion_body(prompt=["a", " "]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt[1]"
