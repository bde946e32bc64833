"""Several choices for one prompt: drawn together, ranked, or equal."""

from typing import Any

import pytest

from tests.app.api.answers import BODIES, post, summed, text_of
from tests.app.api.server import (
    CHAT,
    COMPLETIONS,
    completion_body,
    encode,
)
from tests.fakes.scripted_engine import FakeEngineClient, Script

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
        single = await post(drawing(), path, BODIES[path](seed=9 + index, max_tokens=50))
        assert text_of(single["choices"][0]) == text_of(choice)


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
        # at once, while the other one goes on
        assert client.aborted_choices == [(0, 1)]


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
