"""How a request's sampling fields reach the engine, up to their limits."""

import math

import pytest

from engine.errors import InvalidRequest
from tests.app.api.answers import BODIES, post
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    MAX_MODEL_LEN,
    chat_body,
    completion_body,
    encode,
    in_process,
    make_app,
)
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.scripted_engine import FakeEngineClient, Script

EOS = 2
VOCAB = len(chatml_tokenizer().vocabulary)


async def test_sampling_parameters_reach_the_engine() -> None:
    client = FakeEngineClient([Script([5, EOS])])
    fields = {
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "seed": -(2**63),
        "stop_token_ids": [9, 9],
        "ignore_eos": True,
        "logprobs": 3,
    }
    await post(client, COMPLETIONS, completion_body(**fields))
    [sampling] = client.samplings
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.5, 7)
    assert (sampling.min_p, sampling.seed, sampling.stop_token_ids) == (0.1, -(2**63), (9,))
    assert (sampling.ignore_eos, sampling.num_logprobs) == (True, 3)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_s_own_defaults_reach_the_engine(path: str, stream: bool) -> None:
    client = FakeEngineClient([Script([5, EOS])])
    app = make_app(client, sampling_defaults={"top_k": 1, "temperature": 0.6, "top_p": 0.9})
    async with in_process(app) as http:
        for fields in ({}, {"temperature": None}, {"top_k": 0, "temperature": 1}):
            await http.post(path, json=BODIES[path](stream=stream, **fields))
        search = await http.post(path, json=BODIES[path](stream=stream, use_beam_search=True, n=2))
    assert search.status_code == 200
    assert "x-ignored-parameters" not in search.headers
    found = [(s.top_k, s.temperature, s.top_p) for s in client.samplings[:3]]
    assert found == [(1, 0.6, 0.9), (1, 0.6, 0.9), (0, 1.0, 0.9)]
    assert (client.samplings[3].beam_width, client.samplings[3].top_p) == (2, 1.0)


async def test_negative_zero_is_greedy_and_top_k_minus_one_is_off() -> None:
    client = FakeEngineClient([Script([5, EOS])])
    await post(client, CHAT, chat_body(temperature=-0.0, top_k=-1))
    assert math.copysign(1, client.samplings[0].temperature) == 1
    assert client.samplings[0].top_k == 0


async def test_equal_requests_without_a_seed_get_different_seeds() -> None:
    client = FakeEngineClient([Script([5, EOS])])
    await post(client, COMPLETIONS, completion_body(prompt=["a", "a", "a"]))
    assert len({sampling.seed for sampling in client.samplings}) == 3


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_sampling_controls_reach_the_engine(path: str, stream: bool) -> None:
    client = FakeEngineClient([Script([5, EOS])])
    fields = {
        "n": 2,
        "presence_penalty": -2,
        "frequency_penalty": 2.0,
        "repetition_penalty": 1.3,
        "logit_bias": {"0": 100, str(VOCAB - 1): -100.0},
        "allowed_token_ids": [5, 0, 5],
        "min_tokens": 3,
        "max_tokens": 3,
        "deterministic": True,
    }
    await post(client, path, BODIES[path](stream=stream, **fields))
    [sampling] = client.samplings
    assert (sampling.n, sampling.beam_width, sampling.min_tokens) == (2, 0, 3)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 2.0)
    assert sampling.repetition_penalty == 1.3
    assert sampling.logit_bias == ((0, 100.0), (VOCAB - 1, -100.0))
    assert sampling.allowed_token_ids == (5, 0)
    assert sampling.deterministic


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_min_tokens_end_where_the_room_ends(path: str) -> None:
    client = FakeEngineClient([Script([5, EOS])])
    await post(client, path, BODIES[path](min_tokens=512, max_tokens=512))
    [sampling] = client.samplings
    assert sampling.min_tokens == sampling.max_tokens == MAX_MODEL_LEN - len(client.prompts[0])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_bad_words_are_meant_with_and_without_a_space_in_front(path: str) -> None:
    client = FakeEngineClient([Script([5, EOS])])
    await post(client, path, BODIES[path](bad_words=["quick", " fox", "quick", " "]))
    expected = {tuple(encode(text)) for text in ("quick", " quick", "fox", " fox", " ")}
    assert set(client.samplings[0].bad_words) == expected
    assert len(client.samplings[0].bad_words) == len(expected)


async def test_choices_that_the_engine_cannot_hold_are_refused() -> None:
    refusal = InvalidRequest("a request may have up to 4 sequences, got 5", param="n")
    async with in_process(make_app(FakeEngineClient([], refusal=refusal))) as http:
        response = await http.post(COMPLETIONS, json=completion_body(n=5, stream=True))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
