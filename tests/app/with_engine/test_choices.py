"""Several choices and scored prompts over a real engine and a tiny model."""

from statistics import fmean
from typing import Any

import pytest
import torch

from tests.app.api.answers import BODIES, post, summed, text_of
from tests.app.api.server import CHAT, COMPLETIONS, MAX_MODEL_LEN, chat_body, completion_body
from tests.app.with_engine.reference import PROMPT
from tests.fakes.inline_engine import InlineEngineClient


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_choice_i_alone_has_the_seed_plus_i(path: str, client: InlineEngineClient) -> None:
    body = BODIES[path](n=4, seed=5, max_tokens=12)
    whole = (await post(client, path, body))["choices"]
    streamed = summed(await post(client, path, {**body, "stream": True}))
    assert len({text_of(choice) for choice in whole}) > 1
    for index, choice in enumerate(whole):
        [single] = (await post(client, path, {**body, "n": 1, "seed": 5 + index}))["choices"]
        assert text_of(single) == text_of(choice) == streamed[index]["text"]


async def test_best_of_keeps_the_likeliest(client: InlineEngineClient) -> None:
    fields = {"seed": 1, "max_tokens": 8, "ignore_eos": True, "logprobs": 0}
    every = (await post(client, COMPLETIONS, completion_body(n=6, **fields)))["choices"]
    body = completion_body(n=2, best_of=6, **fields)
    best = (await post(client, COMPLETIONS, body))["choices"]
    every.sort(key=lambda choice: -fmean(choice["logprobs"]["token_logprobs"]))
    assert [choice["text"] for choice in best] == [choice["text"] for choice in every[:2]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_scores_of_a_prompt_are_those_of_transformers(
    stream: bool, max_tokens: int, client: InlineEngineClient, reference: Any
) -> None:
    fields = {"echo": True, "logprobs": 2, "max_tokens": max_tokens, "ignore_eos": True}
    body = completion_body(prompt=PROMPT, stream=stream, **fields)
    answer = await post(client, COMPLETIONS, body)
    [choice] = summed(answer) if stream else answer["choices"]
    with torch.inference_mode():
        logprobs = reference(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    expected = [float(logprobs[at, token]) for at, token in enumerate(PROMPT[1:])]
    scores = choice["logprobs"]["token_logprobs"]
    assert scores[0] is None
    assert scores[1 : len(PROMPT)] == pytest.approx(expected, abs=1e-4)
    assert len(scores) == len(PROMPT) + max_tokens


async def test_a_prompt_that_fills_the_context_can_be_scored(client: InlineEngineClient) -> None:
    prompt = (PROMPT * MAX_MODEL_LEN)[:MAX_MODEL_LEN]
    body = completion_body(prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    assert len(choice["logprobs"]["tokens"]) == MAX_MODEL_LEN
    answer = await post(client, CHAT, chat_body(prompt_logprobs=3, max_tokens=2))
    assert all(len(entry) in (3, 4) for entry in answer["prompt_logprobs"][1:])


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_that_are_asked_for_stand_in_the_place_of_the_most_likely(
    stream: bool, client: InlineEngineClient, reference: Any
) -> None:
    body = completion_body(
        prompt=PROMPT, n=2, seed=3, max_tokens=3, ignore_eos=True, stream=stream, logprobs=5,
        logprob_token_ids=[7, 90, 7], return_tokens_as_token_ids=True, return_token_ids=True,
    )  # fmt: skip
    answer = await post(client, COMPLETIONS, body)
    for choice in summed(answer) if stream else answer["choices"]:
        ids = [*PROMPT, *choice["token_ids"]]
        with torch.inference_mode():
            logprobs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        for at, found in enumerate(choice["logprobs"]["top_logprobs"], start=len(PROMPT)):
            listed = {f"token_id:{id}": float(logprobs[at - 1, id]) for id in (ids[at], 7, 90)}
            assert found == pytest.approx(listed, abs=1e-4)


async def test_a_chat_lists_ids_in_the_order_in_which_they_are_asked_for(
    client: InlineEngineClient,
) -> None:
    body = chat_body(max_tokens=2, ignore_eos=True, logprobs=True, logprob_token_ids=[9, 3, 5])
    answer = await post(client, CHAT, body | {"return_tokens_as_token_ids": True})
    for token in answer["choices"][0]["logprobs"]["content"]:
        assert [top["token"] for top in token["top_logprobs"]] == [
            f"token_id:{id}" for id in (9, 3, 5)
        ]
