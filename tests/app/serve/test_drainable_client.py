"""A server that is about to stop: open requests go on, new ones are refused."""

import pytest

from app.serve.drainable_client import DrainableClient
from engine.errors import EngineUnavailable
from engine.types import FinishReason, Pin, SamplingParams, int32
from tests.fakes.scripted_engine import FakeEngineClient, Script

SAMPLING = SamplingParams(max_tokens=3)


async def test_calls_reach_the_engine_as_they_are() -> None:
    engine = FakeEngineClient([Script([5, 6])])
    client = DrainableClient(engine)
    stream = await client.submit(int32([1]), SAMPLING, salt=b"salt", session=b"session")
    tokens = [token async for delta in stream for token in delta.tokens]
    assert tokens[:2] == [5, 6]
    assert (engine.prompts, engine.salts, engine.sessions) == ([[1]], [b"salt"], [b"session"])
    assert await client.pin_prefix(int32([1]), Pin(name="a"), salt=b"x") is FinishReason.LENGTH
    assert [prefix.name for prefix in await client.prefixes(salt=b"x")] == ["a"]
    await client.release_prefix("a", salt=b"x")
    assert await client.prefixes(salt=b"x") == []
    engine.served_len = 48
    assert await client.max_model_len() == 48
    assert await client.is_ready()
    engine.ready = False
    assert not await client.is_ready()


async def test_a_draining_server_refuses_what_is_new_and_ends_what_is_open() -> None:
    client = DrainableClient(FakeEngineClient([Script([5, 6])]))
    stream = await client.submit(int32([1]), SAMPLING)
    client.drain()
    with pytest.raises(EngineUnavailable) as refused:
        await client.submit(int32([1]), SAMPLING)
    assert refused.value.retry_after_s > 0
    with pytest.raises(EngineUnavailable):
        await client.pin_prefix(int32([1]), Pin(name="a"))
    assert not await client.is_ready()
    assert [token async for delta in stream for token in delta.tokens][:2] == [5, 6]
