"""Prefixes that requests name, and those that are made of their beginnings."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from app.generation.named_prefix import check_prefix, find_prefix, pin_heads
from app.generation.request.prepare import Prompt
from app.protocol.errors import PrefixNotFound
from engine.errors import EngineError, InvalidRequest
from engine.types import FinishReason, IntColumn, Pin, int32
from tests.fakes.scripted_engine import FakeEngineClient, Script

SALT = b"salt"
HEAD = int32([1, 2, 3])


def _client() -> FakeEngineClient:
    return FakeEngineClient([Script([5])])


def _prompt(name: str, *ids: int) -> Prompt:
    return Prompt(name=name, ids=int32(ids), sampling=None)


async def test_only_its_own_tenant_finds_a_prefix() -> None:
    client = _client()
    await client.pin_prefix(HEAD, Pin(name="p"), salt=SALT)
    assert (await find_prefix(client, "p", SALT)).num_tokens == 3
    for name, salt in (("q", SALT), ("p", b"other")):
        with pytest.raises(PrefixNotFound) as caught:
            await find_prefix(client, name, salt, "prefix_id")
        assert caught.value.param == "prefix_id"


async def test_every_prompt_must_begin_with_the_prefix() -> None:
    client = _client()
    await client.pin_prefix(HEAD, Pin(name="p"), salt=SALT)
    right = [_prompt("prompt[0]", 1, 2, 3), _prompt("prompt[1]", 1, 2, 3, 4)]
    await check_prefix(client, "p", SALT, right)
    for ids in ((1, 2), (1, 2, 4), (0, 1, 2, 3)):
        with pytest.raises(InvalidRequest, match=r"prompt\[2\] does not begin") as caught:
            await check_prefix(client, "p", SALT, [*right, _prompt("prompt[2]", *ids)])
        assert caught.value.param == "prefix_id"


async def test_heads_have_names_of_their_tokens_and_times_of_their_own() -> None:
    client = _client()
    for _ in range(2):
        assert await pin_heads(client, [(HEAD, 60.0), (HEAD[:2], 9.0)], SALT, 5.0)
    pinned = client.prefixes_of[SALT]
    assert sorted((p.num_tokens, p.ttl_s) for p in pinned.values()) == [(2, 9.0), (3, 60.0)]
    assert all(len(name) == 37 and name.startswith("head-") for name in pinned)


@dataclass
class _Pinning(FakeEngineClient):
    """Pins nothing."""

    scripts: list[Script] = field(default_factory=list)
    error: Exception | None = None
    num_asked: int = 0

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        return FinishReason.LENGTH


async def test_what_cannot_be_pinned_in_time_is_said() -> None:
    assert not await pin_heads(_Pinning(error=InvalidRequest("no room")), [(HEAD, 1.0)], SALT, 5.0)
    assert not await pin_heads(_Pinning(error=EngineError("lost")), [(HEAD, 1.0)], SALT, 5.0)
    assert not await pin_heads(_Pinning(), [(HEAD, 1.0)], SALT, 0.01)
    client = _client()
    client.pin_reason = FinishReason.ABORT
    assert not await pin_heads(client, [(HEAD, 1.0)], SALT, 5.0)
    assert await pin_heads(_Pinning(), [], SALT, 5.0)


async def test_what_another_request_has_computed_is_not_waited_for() -> None:
    client = _client()
    assert await pin_heads(client, [(HEAD, 1.0)], SALT, 5.0)
    [name] = client.prefixes_of[SALT]
    computing = _Pinning(error=InvalidRequest("is being computed already"))
    found = client.prefixes_of[SALT][name]
    computing.prefixes_of = {SALT: {name: replace(found, is_warm=False)}}
    assert await pin_heads(computing, [(HEAD, 1.0)], SALT, 5.0)
    assert computing.num_asked == 0
