"""Pinned prefixes over a real engine and a tiny model."""

from tests.app.api.answers import post
from tests.app.api.server import COMPLETIONS, completion_body, in_process, make_app
from tests.app.with_engine.reference import PROMPT
from tests.fakes.inline_engine import InlineEngineClient


async def test_a_pinned_prefix_is_found_and_changes_no_answer(client: InlineEngineClient) -> None:
    size, prefix = 16, (PROMPT * 50)[:50]
    async with in_process(make_app(client)) as http:
        pinned = (await http.post("/v1/prefixes", json={"name": "a", "prompt": prefix})).json()
        assert (pinned["tokens"], pinned["blocks"], pinned["status"]) == (48, 3, "pinned")
        assert (await http.get("/v1/prefixes")).json()["data"] == [pinned]
    for prompt in (prefix[:47], prefix[:48], prefix[:49]):
        fields = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        found = await post(client, COMPLETIONS, completion_body(**fields))
        # a prompt that is scored is computed without the cache
        scored = await post(client, COMPLETIONS, completion_body(**fields, prompt_logprobs=0))
        assert found["choices"][0]["text"] == scored["choices"][0]["text"]
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (found, scored)]
        assert cached == [(len(prompt) - 1) // size * size, 0]


async def test_a_prefix_that_fills_no_block_is_refused(client: InlineEngineClient) -> None:
    async with in_process(make_app(client)) as http:
        answer = await http.post("/v1/prefixes", json={"name": "b", "prompt": [5] * 15})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"
    assert "whole blocks of 16" in answer.json()["error"]["message"]
