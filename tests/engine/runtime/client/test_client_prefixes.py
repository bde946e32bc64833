import asyncio

import pytest

from engine.errors import EngineError, InvalidRequest
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.messages import OUTPUTS, PrefixInfo, encode_batch
from engine.runtime.outputs import failure
from engine.types import FinishReason, Pin, Refusal, int32
from tests.fakes.engine_handle import STATS, FakeEngineHandle
from tests.fakes.loop_clock import settle

LENGTH, ABORT = FinishReason.LENGTH, FinishReason.ABORT
PIN = Pin(name="a", ttl_s=2.0)


def pinning(client: RemoteEngineClient) -> "asyncio.Task[FinishReason]":
    return asyncio.create_task(client.pin_prefix(int32([1, 2]), PIN, salt=b"tenant"))


async def next_request(handle: FakeEngineHandle) -> int:
    """Id of the request that is submitted next."""
    await settle()
    return handle.submitted.get_nowait().request_id


async def test_a_prefix_is_a_request_without_output(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    task = pinning(client)
    request_id = await next_request(handle)
    [request] = handle.requests
    assert (request.pin, request.salt) == (PIN, b"tenant")
    assert (request.sampling.max_tokens, request.sampling.n) == (1, 1)
    handle.send_rows((request_id, -1, LENGTH))
    assert await task is LENGTH
    await client.release_prefix("a", salt=b"tenant")
    assert handle.released == [(b"tenant", "a")]


async def test_a_prefix_is_pinned_on_every_replica_in_one_order(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.all_replicas = ["c", "a", "b"]
    handle.lost_replicas = {"b"}
    task = pinning(client)
    for replica in "ac":
        request_id = await next_request(handle)
        assert not task.done()
        handle.send_rows((request_id, -1, LENGTH), replica=replica)
    assert await task is LENGTH
    assert handle.attached == ["a", "c"]


async def test_a_prefix_that_one_replica_refuses_is_offered_to_no_other(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.all_replicas = ["a", "b"]
    task = pinning(client)
    request_id = await next_request(handle)
    why = Refusal(code="invalid_value", message="no room", param="prompt")
    refused = failure([(request_id, 0)], STATS, why)
    handle.send(encode_batch([OUTPUTS.encode(refused)]))
    with pytest.raises(InvalidRequest, match="no room"):
        await task
    assert len(handle.requests) == 1


async def test_a_prefix_that_is_released_meanwhile_counts_as_aborted(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.all_replicas = ["a", "b"]
    task = pinning(client)
    handle.send_rows((await next_request(handle), -1, ABORT))
    assert await task is ABORT
    assert len(handle.requests) == 1


async def test_without_any_replica_nothing_is_pinned(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.lost_replicas = {"a"}
    with pytest.raises(EngineError, match="gone"):
        await pinning(client)


async def test_whoever_stops_waiting_has_the_computation_ended(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    task = pinning(client)
    request_id = await next_request(handle)
    await settle()
    task.cancel()
    await settle()
    assert handle.aborted == [("a", request_id)]
    await asyncio.wait([task])


async def test_prefixes_of_several_replicas_are_listed_once(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    def info(name: str, ttl_s: float | None, *, is_warm: bool = True) -> PrefixInfo:
        return PrefixInfo(
            name=name, num_tokens=4, num_blocks=1, digest=b"d", is_warm=is_warm, ttl_s=ttl_s
        )

    handle.pinned = [
        [info("a", None), info("b", 3.0), info("c", 1.0)],
        [info("c", None, is_warm=False), info("b", 2.0)],
    ]
    listed = await client.prefixes(salt=b"tenant")
    assert listed == [info("a", None), info("b", 2.0), info("c", 1.0, is_warm=False)]
