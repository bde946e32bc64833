"""Parallel sampling, ranking and beam search: several choices for one prompt."""

import math
from typing import Any

import pytest

from engine.errors import EngineError
from engine.types import FinishReason
from tests.app.answers import BODIES, post, summed, text_of
from tests.app.fakes import FakeEngineClient, Hypothesis, Script
from tests.app.server import (
    CHAT,
    COMPLETIONS,
    completion_body,
    encode,
    in_process,
    make_app,
    serving,
)

EOS = 2
VOICES = ["The quick brown fox", "The lazy dog", "It costs", "over the lazy"]


def drawing(**fields: Any) -> FakeEngineClient:
    """An engine whose words depend on the seed."""
    return FakeEngineClient([Script(draw=voice, **fields)])


def voice(seed: int) -> list[int]:
    return [*encode(VOICES[seed % len(VOICES)]), EOS]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("group", [1, 3, 50])
async def test_choices_come_from_one_request_of_the_engine(path: str, group: int) -> None:
    for stream in (False, True):
        client = drawing(group=group)
        answer = await post(client, path, BODIES[path](n=4, seed=4, max_tokens=50, stream=stream))
        choices = summed(answer) if stream else answer["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [text_of(choice) for choice in choices] == VOICES
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        [sampling] = client.samplings
        assert (sampling.n, sampling.beam_width) == (4, 0)
        assert client.aborted == []


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_choices_take_turns_in_a_stream(path: str) -> None:
    chunks = await post(drawing(), path, BODIES[path](n=2, seed=0, stream=True))
    indices = [c["choices"][0]["index"] for c in chunks if text_of(c["choices"][0])]
    assert indices[:4] == [0, 1, 0, 1]
    if path == CHAT:
        roles = [c["choices"][0]["delta"].get("role") for c in chunks]
        assert roles[:2] == ["assistant", "assistant"]
        assert not any(roles[2:])


async def test_index_is_prompt_times_n_plus_choice() -> None:
    for stream in (False, True):
        client = FakeEngineClient([Script(draw=voice), Script(draw=lambda seed: voice(seed + 2))])
        body = completion_body(prompt=["a", "b"], n=2, seed=0, stream=stream, max_tokens=50)
        answer = await post(client, COMPLETIONS, body)
        choices = summed(answer) if stream else answer["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [choice["text"] for choice in choices] == VOICES


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_choice_i_alone_has_the_seed_plus_i(path: str) -> None:
    together = await post(drawing(), path, BODIES[path](n=3, seed=9, max_tokens=50))
    for index, choice in enumerate(together["choices"]):
        alone = await post(drawing(), path, BODIES[path](seed=9 + index, max_tokens=50))
        assert text_of(alone["choices"][0]) == text_of(choice)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_usage_counts_the_prompt_once(path: str) -> None:
    for stream in (False, True):
        client = drawing()
        options = {"stream_options": {"include_usage": True}} if stream else {}
        body = BODIES[path](n=4, seed=0, max_tokens=50, stream=stream, **options)
        answer = await post(client, path, body)
        usage = answer[-1]["usage"] if stream else answer["usage"]
        assert usage["prompt_tokens"] == len(client.prompts[0])
        assert usage["completion_tokens"] == sum(len(voice(seed)) for seed in range(4))


async def test_running_usage_is_that_of_the_choice() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = completion_body(n=2, seed=0, stream=True, stream_options=options, max_tokens=50)
    *chunks, total = await post(drawing(), COMPLETIONS, body)
    last = {c["choices"][0]["index"]: c["usage"]["completion_tokens"] for c in chunks}
    assert last == {0: len(voice(0)), 1: len(voice(1))}
    assert total["usage"]["completion_tokens"] == sum(last.values())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_equal_choices_are_computed_once(path: str, stream: bool) -> None:
    client = FakeEngineClient([Script(voice(0))])
    body = BODIES[path](n=3, temperature=0, max_tokens=50, stream=stream)
    answer = await post(client, path, body)
    choices = summed(answer) if stream else answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [text_of(choice) for choice in choices] == [VOICES[0]] * 3
    assert [sampling.n for sampling in client.samplings] == [1]
    if not stream:
        assert answer["usage"]["completion_tokens"] == 3 * len(voice(0))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stop_string_ends_its_choice_alone(path: str) -> None:
    for stream in (False, True):
        client = drawing()
        body = BODIES[path](n=2, seed=0, stop="lazy", max_tokens=50, stream=stream)
        answer = await post(client, path, body)
        choices = summed(answer) if stream else answer["choices"]
        assert [text_of(choice) for choice in choices] == [VOICES[0], "The "]
        assert [choice["stop_reason"] for choice in choices] == [None, "lazy"]
        assert client.aborted == []


async def test_the_engine_is_stopped_when_every_choice_has_met_a_stop_string() -> None:
    client = drawing()
    await post(client, COMPLETIONS, completion_body(n=2, seed=0, stop="e", max_tokens=50))
    assert client.aborted == [0]


async def test_each_choice_has_its_logprobs_and_ids() -> None:
    for path, wanted in (
        (COMPLETIONS, {"logprobs": 2}),
        (CHAT, {"logprobs": True, "top_logprobs": 2}),
    ):
        body = BODIES[path](n=2, seed=0, max_tokens=50, return_token_ids=True, **wanted)
        whole = (await post(drawing(), path, body))["choices"]
        streamed = summed(await post(drawing(), path, {**body, "stream": True}))
        for index in (0, 1):
            assert whole[index]["token_ids"] == streamed[index]["token_ids"] == voice(index)
            assert whole[index]["logprobs"] == streamed[index]["logprobs"]


async def test_best_of_keeps_the_likeliest_per_token() -> None:
    """Token 7 is likelier than 8 and 9; a longer text is not worse for its length."""
    said = [[9, EOS], [7, 7, 7, 7, EOS], [8, EOS]]
    logprob = {7: -0.1, 8: -0.4, 9: -2.0, EOS: -0.3}
    client = FakeEngineClient(
        [Script(draw=lambda seed: said[seed], logprob_of=lambda token: logprob[token])]
    )
    body = completion_body(n=2, best_of=3, seed=0, return_token_ids=True)
    answer = await post(client, COMPLETIONS, body)
    assert [choice["token_ids"] for choice in answer["choices"]] == [said[1], said[2]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert client.samplings[0].n == 3
    # what was sampled is paid for
    assert answer["usage"]["completion_tokens"] == sum(map(len, said))


async def test_best_of_chooses_for_each_prompt() -> None:
    client = FakeEngineClient(
        [
            Script(draw=lambda seed: [7 + seed, EOS], logprob_of=lambda token: -1.0 / token),
            Script(draw=lambda seed: [7 + seed, EOS], logprob_of=lambda token: -1.0 * token),
        ]
    )
    body = completion_body(prompt=["a", "b"], best_of=3, seed=0, return_token_ids=True)
    answer = await post(client, COMPLETIONS, body)
    assert [choice["token_ids"] for choice in answer["choices"]] == [[9, EOS], [7, EOS]]


async def test_best_of_without_randomness_is_computed_once() -> None:
    client = FakeEngineClient([Script(voice(0))])
    await post(client, COMPLETIONS, completion_body(n=2, best_of=5, temperature=0))
    assert client.samplings[0].n == 1


async def test_best_of_equal_to_n_may_be_streamed() -> None:
    body = completion_body(n=2, best_of=2, seed=0, stream=True, max_tokens=50)
    choices = summed(await post(drawing(), COMPLETIONS, body))
    assert [choice["text"] for choice in choices] == VOICES[:2]


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
    client = FakeEngineClient([Script(voice(0), hypotheses=FOUND)])
    async with in_process(make_app(client)) as http:
        response = await http.post(path, json=BODIES[path](**fields))
    assert response.status_code == 200
    listed = response.headers.get("x-ignored-parameters")
    assert set(listed.split(", ") if listed else []) == ignored
