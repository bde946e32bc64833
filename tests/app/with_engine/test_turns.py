"""Chats that go on, over a real engine and a tiny model."""

from tests.app.api.answers import post
from tests.app.api.server import COMPLETIONS, completion_body
from tests.app.with_engine.reference import PROMPT
from tests.fakes.inline_engine import InlineEngineClient

SIZE = 16


async def test_the_next_turn_finds_the_answer_and_is_answered_as_without(
    client: InlineEngineClient,
) -> None:
    options = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    first = completion_body(prompt=PROMPT, max_tokens=3 * SIZE, **options)
    [answer] = (await post(client, COMPLETIONS, first))["choices"]
    whole = PROMPT + answer["token_ids"]
    turn = completion_body(prompt=whole + PROMPT[:3], max_tokens=SIZE, **options)
    found = await post(client, COMPLETIONS, turn)
    # a prompt that is scored is computed without the cache
    scored = await post(client, COMPLETIONS, {**turn, "prompt_logprobs": 0})
    assert found["choices"][0]["token_ids"] == scored["choices"][0]["token_ids"]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (found, scored)]
    # the last token of an answer is not computed
    assert cached == [(len(whole) - 1) // SIZE * SIZE, 0]
