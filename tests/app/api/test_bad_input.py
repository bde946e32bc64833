"""What must not reach the engine, and what the client reads instead."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from app.text.tokenizer import Tokenizer
from tests.app.api.answers import BODIES
from tests.app.api.bad_fields import (
    BOTH,
    INVALID,
    ONLY_CHAT,
    ONLY_COMPLETIONS,
    TOGETHER,
    UNKNOWN,
)
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body, in_process
from tests.app.api.server import make_app as build
from tests.app.text.tokenizers import byte_level_backend
from tests.fakes.scripted_engine import FakeEngineClient, Script

CASES = [
    *((COMPLETIONS, *case) for case in BOTH + ONLY_COMPLETIONS),
    *((CHAT, *case) for case in BOTH + ONLY_CHAT),
]


def named(value: Any) -> str:
    return f"{value!s:.40}"


@pytest.mark.parametrize(("path", "field", "value", "code", "param"), CASES, ids=named)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_named_and_nothing_is_executed(
    path: str, field: str, value: Any, code: str, param: str, stream: bool
) -> None:
    client = FakeEngineClient([Script([5])])
    options = {"stream": True} if stream or field == "stream_options" else {}
    async with in_process(build(client)) as http:
        response = await http.post(path, json=BODIES[path](**options, **{field: value}))
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert error == {
        "message": error["message"],
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }
    assert len(response.content) <= 1024
    assert client.prompts == []


@pytest.mark.parametrize(("path", "fields", "param"), TOGETHER, ids=named)
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_contradict_each_other_are_named(
    path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    client = FakeEngineClient([Script([5])])
    # the field at fault is the only reason, also where streaming by itself would be one
    options = {"stream": True} if stream and "best_of" not in fields else {}
    async with in_process(build(client)) as http:
        response = await http.post(path, json=BODIES[path](**{**options, **fields}))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, INVALID, param)
    assert client.prompts == []


RAW: dict[str, bytes] = {
    "empty": b"",
    "truncated": b'{"prompt":"a"',
    "trailing text": b"{} x",
    "list": b"[]",
    "string": b'"x"',
    "null": b"null",
    "number": b"7",
    "single quotes": b"{'a':1}",
    "comment": b"{/* */}",
    "trailing comma": b'{"a":1,}',
    "plus": b'{"a":+1}',
    "leading zero": b'{"a":01}',
    "byte order mark": b'\xef\xbb\xbf{"a":1}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "utf-32": '{"a":1}'.encode("utf-32"),
    "not utf-8": b'{"a":"\xff\xfe"}',
    "overlong utf-8": b'{"a":"\xc0\xaf"}',
    "raw NUL": b'{"a":"\x00"}',
    "raw newline": b'{"a":"\n"}',
    "lone surrogate": b'{"prompt":"\\ud800"}',
    "swapped surrogates": b'{"prompt":"\\udc00\\ud800"}',
    "NaN": b'{"temperature":NaN}',
    "Infinity": b'{"temperature":Infinity}',
    "-Infinity": b'{"temperature":-Infinity}',
    "1e999": b'{"temperature":1e999}',
    "5,000 digits": b'{"max_tokens":' + b"1" * 5000 + b"}",
    "depth 33": b'{"a":' + b"[" * 32 + b"]" * 32 + b"}",
    "depth 1,000": b"[" * 1000 + b"]" * 1000,
    "depth 100,000": b"[" * 100_000 + b"]" * 100_000,
    "objects of depth 100,000": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "100,000 fields": json.dumps({f"secret{i}": 1 for i in range(100_000)}).encode(),
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("body", RAW.values(), ids=RAW.keys())
async def test_a_body_that_is_no_json_object_is_refused(path: str, body: bytes) -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(path, content=body, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_json")
    assert error["type"] == "invalid_request_error"
    assert "secret" not in response.text


async def test_depth_of_32_is_parsed() -> None:
    body = b'{"a":' + b"[" * 31 + b"]" * 31 + b"}"
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(
            COMPLETIONS, content=body, headers={"content-type": "application/json"}
        )
    assert response.json()["error"]["code"] == UNKNOWN


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


@pytest.mark.parametrize("model", ["other", "x" * 1_000_000, "a\r\nb", "tiny "])
async def test_a_model_that_is_not_served_is_not_found(model: str) -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(COMPLETIONS, json=completion_body(model=model))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        404,
        "model_not_found",
        "model",
    )
    assert len(response.content) <= 1024


@pytest.mark.parametrize("model", ["", 7])
async def test_a_model_has_a_name(model: Any) -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(CHAT, json=chat_body(model=model))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


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


@pytest.mark.parametrize("stream", ["yes", 1])
async def test_stream_is_a_boolean(stream: Any) -> None:
    async with in_process(build(FakeEngineClient([Script([5])]))) as http:
        response = await http.post(CHAT, json=chat_body(stream=stream))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream"


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


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_null_means_not_given(path: str) -> None:
    optional = {
        "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids",
        "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "stream",
        "stream_options", "return_token_ids", "user", "logprobs", "n", "logit_bias",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "allowed_token_ids",
        "bad_words", "min_tokens", "deterministic", "use_beam_search", "length_penalty",
        "early_stopping", "prompt_logprobs", "cache_salt", "best_of", "echo",
    }  # fmt: skip
    plain, nulls = FakeEngineClient([Script([5])]), FakeEngineClient([Script([5])])
    async with in_process(build(plain)) as http:
        expected = await http.post(path, json=BODIES[path](seed=1))
    async with in_process(build(nulls)) as http:
        response = await http.post(
            path, json={**BODIES[path](**dict.fromkeys(optional)), "seed": 1}
        )
    assert response.status_code == expected.status_code == 200
    assert nulls.samplings == plain.samplings


async def test_a_prompt_without_tokens_is_refused() -> None:
    backend = Backend.from_str(byte_level_backend().to_str())
    backend.normalizer = normalizers.Strip()
    app = build(FakeEngineClient([Script([5])]), tokenizer=Tokenizer(backend, {}, None))
    async with in_process(app) as http:
        response = await http.post(COMPLETIONS, json=completion_body(prompt=["a", " "]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt[1]"
