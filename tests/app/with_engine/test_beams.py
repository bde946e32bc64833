"""Beam search over a real engine and a tiny model, against transformers."""

from typing import Any

import pytest

from tests.app.api.answers import BODIES, post, summed, text_of
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body
from tests.app.with_engine.reference import PROMPT, StopString, logprobs, search
from tests.fakes.inline_engine import InlineEngineClient


def assert_same_tokens(choices: list[dict[str, Any]], expected: Any) -> None:
    for choice, row in zip(choices, expected.sequences, strict=True):
        ids = choice["token_ids"]
        assert ids == row[len(PROMPT) : len(PROMPT) + len(ids)].tolist()


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.3, -1.0])
async def test_beams_and_their_scores_are_those_of_transformers(
    early_stopping: Any, length_penalty: float, client: InlineEngineClient, reference: Any
) -> None:
    expected = search(reference, 10, length_penalty=length_penalty, early_stopping=early_stopping)
    body = completion_body(
        prompt=PROMPT,
        n=4,
        use_beam_search=True,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_tokens=10,
        logprobs=0,
        return_token_ids=True,
        include_stop_str_in_output=True,
    )
    for stream in (False, True):
        answer = await post(client, COMPLETIONS, {**body, "stream": stream})
        choices = summed(answer) if stream else answer["choices"]
        assert_same_tokens(choices, expected)
        scores = [_score(choice, length_penalty) for choice in choices]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
        assert scores == sorted(scores, reverse=True)


def _score(choice: dict[str, Any], length_penalty: float) -> float:
    logprobs = choice["logprobs"]["token_logprobs"]
    return float(sum(logprobs) / len(logprobs) ** length_penalty)


@pytest.mark.parametrize("stream", [False, True])
async def test_alternatives_of_beams_are_those_of_a_forward_pass(
    stream: bool, client: InlineEngineClient, reference: Any
) -> None:
    fields = {"n": 3, "use_beam_search": True, "max_tokens": 6, "ignore_eos": True}
    fields |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "stream": stream}
    body = completion_body(prompt=PROMPT, logprobs=3, **fields)
    answer = await post(client, COMPLETIONS, body)
    for choice in summed(answer) if stream else answer["choices"]:
        ids, found = choice["token_ids"], choice["logprobs"]
        for at, expected in enumerate(logprobs(reference, PROMPT, ids)):
            assert found["token_logprobs"][at] == pytest.approx(float(expected[ids[at]]), abs=1e-4)
            top = {f"token_id:{token}": float(expected[token]) for token in expected.topk(3)[1]}
            top.setdefault(f"token_id:{ids[at]}", float(expected[ids[at]]))
            assert found["top_logprobs"][at] == pytest.approx(top, abs=1e-4)
    answer = await post(client, CHAT, chat_body(logprobs=True, top_logprobs=3, **fields))
    prompt = _prompt_ids(answer) if stream else answer["prompt_token_ids"]
    for choice in summed(answer) if stream else answer["choices"]:
        ids, content = choice["token_ids"], choice["logprobs"]["content"]
        for at, expected in enumerate(logprobs(reference, prompt, ids)):
            assert content[at]["logprob"] == pytest.approx(float(expected[ids[at]]), abs=1e-4)
            values = [entry["logprob"] for entry in content[at]["top_logprobs"]]
            assert values == pytest.approx(expected.topk(3)[0].tolist(), abs=1e-4)


def _prompt_ids(chunks: list[dict[str, Any]]) -> list[int]:
    [ids] = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    return list(ids)


@pytest.mark.in_turn
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("at", [0.1, 0.3])
@pytest.mark.parametrize("min_tokens", [0, 7])
async def test_a_beam_ends_at_a_stop_string_as_in_transformers(
    min_tokens: int, at: float, early_stopping: Any, client: InlineEngineClient, reference: Any
) -> None:
    fields = {"n": 4, "use_beam_search": True, "max_tokens": 12, "early_stopping": early_stopping}
    fields |= {"prompt": PROMPT, "ignore_eos": True, "logprobs": 0, "return_token_ids": True}
    [free, *_] = (await post(client, COMPLETIONS, completion_body(**fields)))["choices"]
    text = free["text"]
    pairs = (text[i : i + 2] for i in range(int(len(text) * at), len(text) - 1))
    stop = next(pair for pair in pairs if pair.isascii())
    expected = search(
        reference,
        12,
        early_stopping=early_stopping,
        eos_token_id=None,
        stopping_criteria=[StopString(stop, min_tokens)],
    )
    for stream in (False, True):
        body = completion_body(stop=stop, min_tokens=min_tokens, stream=stream, **fields)
        answer = await post(client, COMPLETIONS, body)
        choices = summed(answer) if stream else answer["choices"]
        assert min_tokens or stop in {choice["stop_reason"] for choice in choices}
        assert_same_tokens(choices, expected)
        for choice in choices:
            is_met = choice["stop_reason"] == stop
            assert choice["finish_reason"] == ("stop" if is_met else "length")
            assert is_met or len(choice["token_ids"]) == 12
            assert len(choice["token_ids"]) > min_tokens
            assert min_tokens or stop not in choice["text"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_streamed_search_shows_how_far_it_is(
    path: str, client: InlineEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.generation.prompt_reader.PROGRESS_PERIOD_S", 0.0)
    fields = {"n": 4, "use_beam_search": True, "max_tokens": 12, "length_penalty": 0.5}
    plain = (await post(client, path, BODIES[path](**fields)))["choices"]
    chunks = await post(client, path, BODIES[path](stream=True, **fields))
    progress = [chunk for chunk in chunks if "beams" in chunk]
    # one for each step but the last, before any choice
    assert 3 < len(progress) < 12
    assert chunks[: len(progress)] == progress
    assert all(chunk["choices"] == [] for chunk in progress)
    assert [choice["text"] for choice in summed(chunks)] == [text_of(c) for c in plain]
    for chunk in progress:
        assert [beam["index"] for beam in chunk["beams"]] == [0, 1, 2, 3][: len(chunk["beams"])]
        assert all(set(beam) == BEAM_FIELDS for beam in chunk["beams"])
    last = progress[-1]["beams"]
    for choice in plain:
        assert any(_may_become(beam, choice) for beam in last)


BEAM_FIELDS = {"index", "text", "cumulative_logprob", "finish_reason"}


def _may_become(beam: dict[str, Any], choice: dict[str, Any]) -> bool:
    if beam["finish_reason"] is not None:
        return bool(beam["text"] == text_of(choice))
    return text_of(choice).startswith(beam["text"].rstrip("\ufffd"))


async def test_progress_is_not_told_more_often_than_it_can_be_read(
    client: InlineEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.generation.prompt_reader.PROGRESS_PERIOD_S", 1e6)
    body = completion_body(n=2, use_beam_search=True, max_tokens=12, stream=True)
    body["stream_options"] = {"include_usage": True}
    first, *rest = await post(client, COMPLETIONS, body)
    assert [beam["index"] for beam in first["beams"]] == [0, 1]
    assert first["usage"] is None
    assert not any("beams" in chunk for chunk in rest)
    assert len(summed(rest)) == 2
