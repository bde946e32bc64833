import asyncio

from engine.errors import EngineError
from engine.runtime.client.client import RemoteEngineClient
from engine.types import ALL_CHOICES, FinishReason, Refusal
from tests.fakes.engine_handle import FakeEngineHandle, read, read_choices, submit
from tests.fakes.loop_clock import settle

NONE, LENGTH = FinishReason.NONE, FinishReason.LENGTH


async def test_abort_ends_the_stream_and_reaches_its_replica(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    await stream.abort()
    await stream.abort()
    assert await read_choices(stream) == [(0, [], FinishReason.ABORT)]
    assert handle.aborted == [("a", stream.request_id)]


async def test_a_request_is_aborted_on_the_replica_that_has_it(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    await submit(client)
    handle.replica = "b"
    stream = await submit(client, n=2)
    handle.replica = "c"
    await submit(client)
    await stream.abort_choice(0)
    await stream.abort()
    assert handle.aborted == [("b", stream.request_id)] * 2
    assert handle.aborted_choices == [0, ALL_CHOICES]


async def test_a_single_choice_is_aborted(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=2)
    await stream.abort_choice(1)
    await stream.abort_choice(1)
    assert (handle.aborted, handle.aborted_choices) == ([("a", stream.request_id)], [1])
    abort = FinishReason.ABORT
    handle.send_rows((stream.request_id, -1, abort, 1), (stream.request_id, 5, LENGTH, 0))
    assert await read_choices(stream) == [(0, [5], LENGTH)]


async def test_a_lost_abort_of_a_choice_leaves_the_others_open(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=2)
    handle.loses_aborts = True
    await stream.abort_choice(0)
    handle.send_rows((stream.request_id, 4, NONE, 0), (stream.request_id, 5, LENGTH, 1))
    assert await read(stream) == [5]


async def test_abort_reaches_the_replica_when_the_caller_is_cancelled(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)

    async def request() -> None:
        try:
            await read(stream)
        finally:
            await stream.abort()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await settle()
    assert handle.aborted == [("a", stream.request_id)]
    await asyncio.wait([task])


async def test_a_submission_cancelled_before_its_verdict_is_aborted(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.may_answer.clear()
    task = asyncio.create_task(submit(client))
    await settle()
    task.cancel()
    await asyncio.wait([task])
    handle.may_answer.set()
    await settle()
    assert task.cancelled()
    assert handle.aborted == [("a", handle.requests[0].request_id)]


async def test_a_submission_cancelled_before_its_refusal_is_not_aborted(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.may_answer.clear()
    handle.refusal = Refusal(code="queue_full", message="full")
    task = asyncio.create_task(submit(client))
    await settle()
    task.cancel()
    await asyncio.wait([task])
    handle.may_answer.set()
    await settle()
    assert len(handle.requests) == 1
    assert handle.aborted == []


async def test_the_end_of_an_unknown_request_is_no_reason_to_abort_it(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.send_rows((12345, 1, LENGTH), (stream.request_id, 1, LENGTH))
    assert await read(stream) == [1]
    assert handle.aborted == []


async def test_abort_ends_every_choice_that_goes_on(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=3)
    other = await submit(client)
    handle.send_rows((stream.request_id, 5, LENGTH, 1), (other.request_id, 1, LENGTH))
    assert await read(other) == [1]
    await stream.abort()
    abort = FinishReason.ABORT
    assert await read_choices(stream) == [(1, [5], LENGTH), (0, [], abort), (2, [], abort)]


async def test_a_request_whose_verdict_was_lost_is_aborted_at_its_first_output(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    known = await submit(client)
    handle.failures = [EngineError("no answer in time")]
    submitting = asyncio.create_task(submit(client))
    await settle()
    unseen = handle.requests[1].request_id
    handle.send_rows((unseen, 1, NONE))
    await settle()
    # what was sent before the abort came is no reason for another one
    handle.send_rows((unseen, 1, NONE))
    handle.send_rows((unseen, -1, FinishReason.ABORT), (known.request_id, 1, LENGTH))
    assert await read(known) == [1]
    assert handle.aborted == [("a", unseen)]
    submitting.cancel()
    await asyncio.wait([submitting])


async def test_a_lost_abort_is_repeated_when_the_replica_goes_on(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.loses_aborts = True
    await stream.abort()
    handle.loses_aborts = False
    handle.send_rows((stream.request_id, 1, NONE))
    await settle()
    assert handle.aborted == [("a", stream.request_id)] * 2
