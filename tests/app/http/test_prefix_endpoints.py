"""/v1/prefixes."""

import hashlib
from typing import Any

import pytest

from app.generation.tenancy import tenant_salt
from engine.errors import InvalidRequest
from engine.types import FinishReason
from tests.app.api.server import MAX_MODEL_LEN, MODEL, encode, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

URL = "/v1/prefixes"
KEYS = ("one", "two")
DIGESTS = tuple(hashlib.sha256(key.encode()).digest() for key in KEYS)
TEXT = "The quick brown fox jumps over the lazy dog."


def engine_client(**options: Any) -> FakeEngineClient:
    return FakeEngineClient([Script([5])], **options)


async def test_a_prefix_is_tokenised_as_a_prompt_of_its_kind() -> None:
    client = engine_client()
    messages = [{"role": "system", "content": TEXT}]
    async with in_process(make_app(client)) as http:
        for body in ({"prompt": TEXT}, {"prompt": encode(TEXT)}, {"messages": messages}):
            answer = await http.post(URL, json={"name": "a", "model": MODEL, "ttl_s": 5, **body})
            assert answer.status_code == 200, answer.text
            assert answer.json() == {
                "id": "a",
                "object": "prefix",
                "status": "pinned",
                "tokens": len(client.prompts[-1]),
                "blocks": 1,
                "expires_in_s": 5.0,
            }
        count = await http.post(
            "/tokenize", json={"messages": messages, "add_generation_prompt": False}
        )
    assert client.prompts == [encode(TEXT), encode(TEXT), count.json()["tokens"]]


async def test_a_prefix_is_shown_and_released() -> None:
    async with in_process(make_app(engine_client())) as http:
        pinned = (await http.post(URL, json={"name": "a", "prompt": TEXT})).json()
        assert (await http.get(URL)).json() == {"object": "list", "data": [pinned]}
        assert (await http.get(f"{URL}/a")).json() == pinned
        deleted = await http.delete(f"{URL}/a")
        assert deleted.json() == {"id": "a", "object": "prefix", "deleted": True}
        for answer in (await http.get(f"{URL}/a"), await http.delete(f"{URL}/a")):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "prefix_not_found"


async def test_a_caller_neither_sees_nor_releases_what_another_has_pinned() -> None:
    client = engine_client()
    one, two = ({"authorization": f"Bearer {key}"} for key in KEYS)
    async with in_process(make_app(client, api_key_sha256=DIGESTS)) as http:
        assert (await http.post(URL, json={"name": "a", "prompt": TEXT})).status_code == 401
        await http.post(URL, json={"name": "a", "prompt": TEXT}, headers=one)
        salted = {"name": "b", "prompt": TEXT, "cache_salt": "X"}
        await http.post(URL, json=salted, headers=one)
        assert client.salts == [tenant_salt(DIGESTS[0], None), tenant_salt(DIGESTS[0], "X")]
        assert (await http.get(URL, headers=two)).json()["data"] == []
        assert (await http.delete(f"{URL}/a", headers=two)).status_code == 404
        [mine] = (await http.get(URL, headers=one)).json()["data"]
        assert mine["id"] == "a"
        own = await http.delete(f"{URL}/b", params={"cache_salt": "X"}, headers=one)
        assert own.status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": TEXT}, "name"),
        ({"name": "a b", "prompt": TEXT}, "name"),
        ({"name": "a"}, "prompt"),
        ({"name": "a", "prompt": TEXT, "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ({"name": "a", "prompt": [10**6]}, "prompt[0]"),
        ({"name": "a", "prompt": [1] * MAX_MODEL_LEN}, "prompt"),
        ({"name": "a", "prompt": TEXT, "ttl_s": 0}, "ttl_s"),
        ({"name": "a", "prompt": TEXT, "max_tokens": 3}, "max_tokens"),
        ({"name": "a", "prompt": TEXT, "model": "other"}, "model"),
    ],
)
async def test_a_bad_field_is_named(body: dict[str, Any], param: str) -> None:
    client = engine_client()
    async with in_process(make_app(client)) as http:
        answer = await http.post(URL, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param
    assert not client.prompts


async def test_what_the_engine_refuses_is_the_callers_error() -> None:
    error = InvalidRequest("needs 3 more blocks, but only 1", param="prompt")
    for client in (engine_client(refusal=error), FakeEngineClient([Script([5], error=error)])):
        async with in_process(make_app(client)) as http:
            answer = await http.post(URL, json={"name": "a", "prompt": TEXT})
        assert answer.status_code == 400
        assert "needs 3 more blocks" in answer.json()["error"]["message"]


async def test_a_prefix_that_is_not_computed_is_the_engines_error() -> None:
    client = engine_client(pin_reason=FinishReason.ABORT)
    async with in_process(make_app(client)) as http:
        answer = await http.post(URL, json={"name": "a", "prompt": TEXT})
    assert answer.status_code == 503
