"""Pinned prefixes over a real engine and a tiny model."""

from typing import Any

import httpx

from tests.app.api.answers import post
from tests.app.api.server import CHAT, COMPLETIONS, completion_body, in_process, make_app
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


async def test_a_prefix_may_be_named_by_who_begins_with_it(client: InlineEngineClient) -> None:
    prefix = (PROMPT * 50)[:40]
    fields = {"max_tokens": 4, "temperature": 0, "prefix_id": "named"}
    async with in_process(make_app(client)) as http:
        await http.post("/v1/prefixes", json={"name": "named", "prompt": prefix})
        # what is pinned are whole blocks
        asked = completion_body(prompt=[[*prefix[:32], 7, 8], [*prefix, 9]], **fields)
        answer = (await http.post(COMPLETIONS, json=asked)).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        for prompt in (prefix[:31], [5, *prefix]):
            both = completion_body(prompt=[prefix, prompt], **fields)
            refused = await http.post(COMPLETIONS, json=both)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "prefix_id"
        other_tenant = completion_body(prompt=prefix, cache_salt="other", **fields)
        unknown = await http.post(COMPLETIONS, json=other_tenant)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "prefix_not_found")
        await http.delete("/v1/prefixes/named")


IGNORED = "x-ignored-parameters"
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def _parts(*texts: str) -> list[dict[str, Any]]:
    *first, last = ({"type": "text", "text": text} for text in texts)
    return [*first[:-1], first[-1] | MARK, last]


async def _heads(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """What was pinned because it was marked; other tests leave prefixes of their own."""
    pinned = (await http.get("/v1/prefixes")).json()["data"]
    return [each for each in pinned if each["id"].startswith("head-")]


async def test_marked_beginnings_of_chats_are_pinned(client: InlineEngineClient) -> None:
    body: dict[str, Any] = {"max_tokens": 4, "prompt_cache_options": {"ttl": "12h"}}
    long = "The quick brown fox jumps. " * 8
    async with in_process(make_app(client)) as http:
        for question in ("Why?", "Where to?"):
            said = [{"role": "user", "content": _parts(long, question)}]
            answer = await http.post(CHAT, json={**body, "messages": said})
            assert (answer.status_code, answer.headers.get(IGNORED)) == (200, None)
            [pinned] = await _heads(http)
            assert (
                answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                >= (pinned["tokens"])
            )
        rendered = await http.post("/tokenize", json={"messages": said})
        common = await http.post("/tokenize", json={"prompt": long})
        # behind what the template writes in front of it
        assert rendered.json()["count"] - pinned["tokens"] > 0
        assert pinned["tokens"] >= common.json()["count"] // 16 * 16
        await http.delete(f"/v1/prefixes/{pinned['id']}")


async def test_what_cannot_be_pinned_is_said(client: InlineEngineClient) -> None:
    said = [{"role": "user", "content": _parts("A", "B")}]
    async with in_process(make_app(client)) as http:
        answer = await http.post(CHAT, json={"max_tokens": 1, "messages": said})
        assert answer.headers[IGNORED] == "messages.content.prompt_cache_breakpoint"
        assert await _heads(http) == []
