"""Beam search over HTTP: best first, at the end, however long it takes."""

import math
from typing import Any

import pytest

from engine.errors import EngineError
from engine.types import FinishReason
from tests.app.api.answers import BODIES, post, summed, text_of
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    completion_body,
    encode,
    in_process,
    make_app,
    serving,
)
from tests.fakes.scripted_engine import FakeEngineClient, Hypothesis, Script

EOS = 2
FOUND = [
    Hypothesis([*encode("The lazy dog"), EOS], [-0.1] * (len(encode("The lazy dog")) + 1)),
    Hypothesis(encode("The quick fox"), [-0.5] * len(encode("The quick fox")), FinishReason.LENGTH),
    Hypothesis([*encode("It costs"), EOS], [-1.0] * (len(encode("It costs")) + 1)),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_beams_come_best_first(path: str, stream: bool) -> None:
    client = FakeEngineClient([Script(hypotheses=FOUND)])
    logprobs = {"logprobs": 0} if path == COMPLETIONS else {"logprobs": True}
    body = BODIES[path](n=3, use_beam_search=True, length_penalty=0.7, stream=stream, **logprobs)
    answer = await post(client, path, {**body, "include_stop_str_in_output": True})
    choices = summed(answer) if stream else answer["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "length", "stop"]
    scores = [_score(choice, 0.7) for choice in choices]
    expected = [sum(h.logprobs) / len(h.tokens) ** 0.7 for h in FOUND]
    assert scores == pytest.approx(expected)
    assert scores == sorted(scores, reverse=True)


def _score(choice: dict[str, Any], length_penalty: float) -> float:
    logprobs = choice["logprobs"]
    values = logprobs.get("token_logprobs") or [e["logprob"] for e in logprobs["content"]]
    return float(math.fsum(values) / len(values) ** length_penalty)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_beam_parameters_reach_the_engine(path: str) -> None:
    client = FakeEngineClient([Script(hypotheses=FOUND)])
    fields = {
        "n": 2,
        "use_beam_search": True,
        "length_penalty": -0.5,
        "early_stopping": "never",
        "stop_token_ids": [9],
        "ignore_eos": True,
        "min_tokens": 3,
        "max_tokens": 5,
    }
    await post(client, path, BODIES[path](**fields))
    [sampling] = client.samplings
    assert (sampling.n, sampling.beam_width, sampling.length_penalty) == (2, 2, -0.5)
    assert (sampling.early_stopping, sampling.stop_token_ids) == ("never", (9,))
    assert (sampling.ignore_eos, sampling.min_tokens, sampling.max_tokens) == (True, 3, 5)


async def test_best_of_is_the_width_of_a_beam_search() -> None:
    for stream in (False, True):
        client = FakeEngineClient([Script(hypotheses=FOUND)])
        body = completion_body(n=2, best_of=5, use_beam_search=True, stream=stream)
        answer = await post(client, COMPLETIONS, body)
        choices = summed(answer) if stream else answer["choices"]
        assert [choice["text"] for choice in choices] == ["The lazy dog", "The quick fox"]
        assert (client.samplings[0].n, client.samplings[0].beam_width) == (2, 5)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stop_string_cuts_a_beam_and_keeps_its_rank(path: str) -> None:
    for stream in (False, True):
        client = FakeEngineClient([Script(hypotheses=FOUND)])
        body = BODIES[path](n=3, use_beam_search=True, stop=" fox", stream=stream)
        answer = await post(client, path, body)
        choices = summed(answer) if stream else answer["choices"]
        assert [text_of(choice) for choice in choices] == ["The lazy dog", "The quick", "It costs"]
        assert [choice["finish_reason"] for choice in choices] == ["stop"] * 3
        assert [choice["stop_reason"] for choice in choices] == [None, " fox", None]


async def test_a_search_that_finds_too_little_leaves_choices_empty() -> None:
    client = FakeEngineClient([Script(hypotheses=FOUND[:1])])
    answer = await post(client, COMPLETIONS, completion_body(n=2, use_beam_search=True))
    assert [choice["text"] for choice in answer["choices"]] == ["The lazy dog", ""]
    assert answer["choices"][1]["finish_reason"] == "stop"


async def test_a_silent_stream_shows_that_it_lives() -> None:
    client = FakeEngineClient([Script(hypotheses=FOUND, pause_at=0)])
    body = completion_body(n=2, use_beam_search=True, stream=True)
    app = make_app(client, keep_alive_s=0.01)
    async with serving(app) as http, http.stream("POST", COMPLETIONS, json=body) as response:
        parts = response.aiter_raw()
        assert (await anext(parts)).startswith(b": keep-alive\n\n")
        client.resume.set()
        rest = b"".join([part async for part in parts])
    assert b"The lazy dog" in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_a_silent_stream_ends_the_search() -> None:
    client = FakeEngineClient([Script(hypotheses=FOUND, pause_at=0)])
    body = completion_body(n=2, use_beam_search=True, stream=True)
    app = make_app(client, keep_alive_s=0.01)
    async with serving(app) as http:
        async with http.stream("POST", COMPLETIONS, json=body) as response:
            await anext(response.aiter_raw())
        await client.abort_seen.wait()
    assert client.aborted == [0]


async def test_a_search_that_fails_after_a_silence_ends_with_an_error() -> None:
    script = Script(hypotheses=FOUND, pause_at=0, error=EngineError("inner words"))
    client = FakeEngineClient([script])
    body = completion_body(n=2, use_beam_search=True, stream=True)
    app = make_app(client, keep_alive_s=0.01)
    async with serving(app) as http, http.stream("POST", COMPLETIONS, json=body) as response:
        parts = response.aiter_raw()
        await anext(parts)
        client.resume.set()
        rest = b"".join([part async for part in parts])
    assert b'"code":"engine_failed"' in rest
    assert b"[DONE]" not in rest


async def test_a_search_that_fails_at_once_is_a_status() -> None:
    client = FakeEngineClient([Script(hypotheses=FOUND, error=EngineError("inner words"))])
    async with in_process(make_app(client)) as http:
        body = completion_body(n=2, use_beam_search=True, stream=True)
        response = await http.post(COMPLETIONS, json=body)
    assert response.status_code == 503


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"use_beam_search": True, "temperature": 0.7, "seed": 3}, {"temperature", "seed"}),
        ({"use_beam_search": True, "length_penalty": 0.7, "early_stopping": True}, set()),
        ({"length_penalty": 0.7, "early_stopping": True}, {"length_penalty", "early_stopping"}),
        ({"temperature": 0.7, "seed": 3}, set()),
    ],
)
async def test_fields_that_mean_nothing_beside_the_others_are_listed(
    path: str, fields: dict[str, Any], ignored: set[str]
) -> None:
    client = FakeEngineClient([Script([5, EOS], hypotheses=FOUND)])
    async with in_process(make_app(client)) as http:
        response = await http.post(path, json=BODIES[path](**fields))
    assert response.status_code == 200
    listed = response.headers.get("x-ignored-parameters")
    assert set(listed.split(", ") if listed else []) == ignored
