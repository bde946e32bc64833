"""What an answer would list is counted before it is computed."""

from typing import Any

import pytest

from app.generation.request.answer_size import AnswerSize
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.generation_fields import GenerationFields
from engine.errors import InvalidRequest
from tests.app.api.server import chat_body, completion_body
from tests.app.generation.prepared import chat, completion, encoder

LEN, ROOM = 10, 100


def completions(**fields: Any) -> CompletionRequest:
    return CompletionRequest(**completion_body(**fields))


def chats(**fields: Any) -> ChatRequest:
    return ChatRequest(**chat_body(**fields))


@pytest.mark.parametrize(
    ("request_", "num_items"),
    [
        (completions(n=3), 0),
        (completions(n=3, echo=True), 3 * LEN),
        (completions(n=3, return_token_ids=True), 3 * LEN),
        (completions(n=3, echo=True, logprobs=4, stream=True), 3 * LEN * 5),
        (completions(n=3, prompt_logprobs=4), 3 * LEN * 5),
        (completions(n=3, echo=True, prompt_logprobs=4), 3 * LEN * 6),
        (completions(n=3, logprobs=4, max_tokens=ROOM), 3 * ROOM * 5),
        (completions(n=3, best_of=6, logprobs=4, max_tokens=ROOM), 6 * ROOM * 5),
        (chats(n=3, prompt_logprobs=4), LEN * 5),
        (chats(n=3, logprobs=True, top_logprobs=4, max_tokens=ROOM), 3 * ROOM * 5),
        (chats(n=3, logprobs=True, max_completion_tokens=ROOM), 3 * ROOM),
    ],
)
def test_an_answer_may_be_just_as_large_as_the_limit(
    request_: GenerationFields, num_items: int
) -> None:
    assert AnswerSize(request_, num_items).add(LEN, ROOM) == ROOM
    if num_items:
        with pytest.raises(InvalidRequest, match=f"would list {num_items} token"):
            AnswerSize(request_, num_items - 1).add(LEN, ROOM)


def test_prompts_of_a_request_add_up() -> None:
    size = AnswerSize(completions(echo=True, prompt=["a", "b", "c"]), 2 * LEN)
    size.add(LEN, ROOM)
    size.add(LEN, ROOM)
    with pytest.raises(InvalidRequest):
        size.add(LEN, ROOM)


def test_an_answer_of_no_given_length_ends_where_it_would_be_too_large() -> None:
    request = chats(n=2, logprobs=True, top_logprobs=4)
    assert AnswerSize(request, 2 * 5 * 7).add(LEN, ROOM) == 7
    assert AnswerSize(chats(n=2, logprobs=True, stream=True), 20).add(LEN, ROOM) == ROOM
    with pytest.raises(InvalidRequest):
        AnswerSize(request, 9).add(LEN, ROOM)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (completions(echo=True), "echo"),
        (completions(echo=True, prompt_logprobs=1), "prompt_logprobs"),
        (completions(return_token_ids=True), "return_token_ids"),
        (completions(logprobs=1, max_tokens=ROOM), "logprobs"),
        (chats(logprobs=True, max_tokens=ROOM), "logprobs"),
    ],
)
def test_the_field_that_makes_it_large_is_named(request_: GenerationFields, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        AnswerSize(request_, 1).add(LEN, ROOM)
    assert caught.value.param == field


async def test_both_routes_keep_to_it() -> None:
    prompts = encoder(max_answer_items=64)
    with pytest.raises(InvalidRequest, match="at most 64"):
        await completion(prompts, prompt="a" * 60, echo=True, n=9)
    with pytest.raises(InvalidRequest, match="at most 64"):
        await chat(prompts, prompt_logprobs=20)
    [prompt], _ = await chat(prompts, logprobs=True, top_logprobs=7)
    assert prompt.sampling is not None
    assert prompt.sampling.max_tokens == 8
