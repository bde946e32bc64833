import asyncio

import pytest

from engine.errors import EngineError, InvalidRequest, Overloaded, ReaderTooSlow
from engine.runtime.client import token_stream
from engine.runtime.client.client import RENEW_PERIOD_S, RemoteEngineClient
from engine.runtime.client.lease import MAX_FAILURES
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.messages import OUTPUTS, encode_batch
from engine.runtime.outputs import failure
from engine.types import PROMPT_CHOICE, FinishReason, Refusal, SamplingParams, int32
from tests.fakes.engine_handle import (
    REQUEST_CONTEXT,
    STATS,
    FakeEngineHandle,
    read,
    read_choices,
    submit,
)
from tests.fakes.loop_clock import LoopClock, settle

NONE, LENGTH = FinishReason.NONE, FinishReason.LENGTH


async def test_each_stream_gets_its_own_tokens(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    first, second = await submit(client), await submit(client)
    handle.send_rows((first.request_id, 1, NONE), (second.request_id, 7, NONE))
    handle.send_rows(
        (second.request_id, 8, LENGTH), (first.request_id, 2, LENGTH), (12345, 9, NONE)
    )
    assert await read(first) == [1, 2]
    assert await read(second) == [7, 8]
    assert handle.attached == ["a"]
    assert [request.request_id for request in handle.requests] == [
        first.request_id,
        second.request_id,
    ]


async def test_the_engine_gets_the_tenant(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    await client.submit(int32([1]), SamplingParams(max_tokens=5), salt=b"tenant")
    await submit(client)
    assert [request.salt for request in handle.requests] == [b"tenant", b""]


async def test_a_reader_that_is_too_slow_loses_only_its_own_request(
    client: RemoteEngineClient,
    handle: FakeEngineHandle,
    clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a token and its log-probability take 8 bytes
    monkeypatch.setattr(token_stream, "MAX_UNREAD_BYTES", 40)
    slow, good = await submit(client), await submit(client)

    async def read_all() -> list[int]:
        return [token async for delta in good for token in delta.tokens]

    reading = asyncio.create_task(read_all())
    for number in range(9):
        # more than that may wait for a moment
        handle.send_rows((slow.request_id, number, NONE), (good.request_id, number, NONE))
        await clock.advance(token_stream.UNREAD_S / 3)
    handle.send_rows((slow.request_id, 9, NONE), (good.request_id, 9, LENGTH))
    assert await reading == list(range(10))
    assert handle.aborted == [("a", slow.request_id)]
    assert slow.has_ended
    with pytest.raises(ReaderTooSlow):
        await read(slow)


async def test_a_reader_that_catches_up_keeps_its_request(
    client: RemoteEngineClient,
    handle: FakeEngineHandle,
    clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_stream, "MAX_UNREAD_BYTES", 40)
    stream = await submit(client)
    items = aiter(stream)
    for number in range(20):
        handle.send_rows((stream.request_id, number, NONE))
        await clock.advance(token_stream.UNREAD_S)
        if number > 4:
            await anext(items)
    assert handle.aborted == []
    handle.send_rows((stream.request_id, 20, LENGTH))
    assert [delta.tokens[0] async for delta in items] == [15, 16, 17, 18, 19, 20]


async def test_a_full_replica_is_not_asked_by_the_next_request(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.refusal = Refusal(code="queue_full", message="full", retry_after_s=3.0)
    handle.room = 0
    client.check_room(b"")
    with pytest.raises(Overloaded):
        await submit(client)
    with pytest.raises(Overloaded) as refused:
        client.check_room(b"")
    assert refused.value.retry_after_s == 3.0
    with pytest.raises(Overloaded):
        await submit(client)
    assert len(handle.requests) == 1


async def test_a_stream_that_has_ended_stays_ended(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.send_rows((stream.request_id, 1, LENGTH))
    assert await read(stream) == [1]
    assert await read(stream) == []
    await stream.abort()
    assert handle.aborted == []


async def test_tokens_that_come_before_the_verdict_are_kept(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    first = await submit(client)
    handle.may_answer.clear()
    submitting = asyncio.ensure_future(submit(client))
    await asyncio.sleep(0)
    handle.send_rows((first.request_id + 1, 3, LENGTH), (first.request_id, 9, LENGTH))
    assert await read(first) == [9]
    handle.may_answer.set()
    assert await read(await submitting) == [3]


async def test_a_refusal_is_raised(client: RemoteEngineClient, handle: FakeEngineHandle) -> None:
    handle.refusal = Refusal(code="queue_full", message="full", retry_after_s=3.0)
    with pytest.raises(Overloaded) as full:
        await submit(client)
    assert full.value.retry_after_s == 3.0
    assert handle.attached == []


async def test_without_a_replica_nothing_is_ready(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    assert await client.is_ready()
    assert await client.max_model_len() == 64
    handle.is_up = False
    assert not await client.is_ready()
    assert await client.max_model_len() is None


async def test_the_shared_stream_does_not_belong_to_the_first_request(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    async def first_request() -> RemoteTokenStream:
        REQUEST_CONTEXT.set("the first request")
        stream = await submit(client)
        await asyncio.Event().wait()
        return stream

    first = asyncio.create_task(first_request())
    await settle()
    first.cancel()
    second = await submit(client)
    handle.send_rows((second.request_id, 4, LENGTH))
    assert await read(second) == [4]
    assert handle.attached == ["a"]
    assert handle.contexts == {""}


async def test_the_death_of_a_replica_moves_its_requests_and_no_other(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    doomed = [await submit(client), await submit(client)]
    handle.replica = "b"
    other = await submit(client)
    handle.end_stream("a", EngineError("replica a died"))
    await settle()
    assert [request.request_id for request in handle.requests[3:]] == [
        stream.submission_id for stream in doomed
    ]
    assert other.submission_id == other.request_id
    for token, stream in enumerate((*doomed, other)):
        handle.send_rows((stream.submission_id, token, LENGTH), replica="b")
        assert await read(stream) == [token]


async def test_an_idle_stream_is_opened_again_for_the_next_request(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    for token in (1, 2):
        stream = await submit(client)
        handle.send_rows((stream.request_id, token, LENGTH))
        handle.end_stream("a")
        assert await read(stream) == [token]
    assert handle.attached == ["a", "a"]


async def test_a_request_that_its_replica_forgets_is_submitted_again(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.send_rows((stream.request_id, 1, NONE))
    handle.end_stream("a")
    await settle()
    assert handle.attached == ["a", "a"]
    handle.send_rows((stream.submission_id, 2, LENGTH))
    assert await read(stream) == [1, 2]


async def test_the_lease_is_renewed_while_requests_are_open(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    stream = await submit(client)
    await clock.advance(RENEW_PERIOD_S)
    await clock.advance(RENEW_PERIOD_S)
    assert handle.renewed == [("a", 0)] * 2
    handle.send_rows((stream.request_id, 1, LENGTH))
    handle.end_stream("a")
    await clock.advance(2 * RENEW_PERIOD_S)
    assert len(handle.renewed) == 2


async def test_requests_of_a_replica_that_does_not_answer_go_on_elsewhere(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    lost, handle.replica = await submit(client), "b"
    kept = await submit(client)
    handle.silent_replicas.add("a")
    for _ in range(2 * MAX_FAILURES):
        await clock.advance(RENEW_PERIOD_S)
    assert (lost.replica, handle.avoided[-1]) == ("b", "a")
    assert handle.read == {"b"}
    rows = (lost.submission_id, 5, LENGTH), (kept.request_id, 6, LENGTH)
    handle.send_rows(*rows, replica="b")
    assert (await read(lost), await read(kept)) == ([5], [6])
    # it is followed again when it takes a request again
    handle.silent_replicas.clear()
    handle.replica = "a"
    stream = await submit(client)
    handle.send_rows((stream.request_id, 7, LENGTH))
    assert await read(stream) == [7]
    assert handle.attached == ["a", "b", "a"]


async def test_close_fails_what_is_open(client: RemoteEngineClient) -> None:
    stream = await submit(client)
    await client.close()
    with pytest.raises(EngineError, match="closed"):
        await read(stream)


async def test_a_stream_ends_with_its_last_choice(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=2)
    handle.send_rows((stream.request_id, 1, NONE, 0), (stream.request_id, 5, LENGTH, 1))
    # nothing comes after the end of a choice
    handle.send_rows((stream.request_id, 6, NONE, 1), (stream.request_id, 2, LENGTH, 0))
    assert await read_choices(stream) == [(0, [1], NONE), (1, [5], LENGTH), (0, [2], LENGTH)]
    assert await read(stream) == []


async def test_scores_of_the_prompt_are_passed_on_and_end_nothing(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.send_rows((stream.request_id, 1, LENGTH, PROMPT_CHOICE))
    handle.send_rows((stream.request_id, 2, LENGTH))
    assert await read_choices(stream) == [(PROMPT_CHOICE, [1], LENGTH), (0, [2], LENGTH)]


async def test_each_replica_hears_how_much_of_its_stream_has_been_read(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    stream = await submit(client)
    handle.replica = "b"
    await submit(client)
    handle.send_rows((stream.request_id, 1, NONE))
    await clock.advance(RENEW_PERIOD_S)
    renewed = dict(handle.renewed)
    assert renewed["a"] > 0
    assert renewed["b"] == 0


async def test_bytes_that_are_no_outputs_move_the_requests_of_their_replica(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.spare = "b"
    handle.send(b"junk")
    await settle()
    assert stream.replica == "b"


async def test_a_request_that_is_refused_after_all_fails_with_the_reason(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    refused, other = await submit(client), await submit(client)
    why = Refusal(code="invalid_value", message="no room", param="prompt")
    refused_output = failure([(refused.request_id, 0)], STATS, why)
    unknown = failure([(12345, 0)], STATS, why)
    handle.send(encode_batch([OUTPUTS.encode(output) for output in (unknown, refused_output)]))
    with pytest.raises(InvalidRequest, match="no room") as caught:
        await read(refused)
    assert caught.value.param == "prompt"
    handle.send_rows((other.request_id, 3, LENGTH))
    assert await read(other) == [3]


async def test_a_stream_that_is_opened_again_is_counted_from_its_beginning(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    first = await submit(client)
    handle.send_rows((first.request_id, 1, LENGTH))
    await clock.advance(RENEW_PERIOD_S)
    # it comes while the stream ends
    second = await submit(client)
    handle.end_stream("a")
    await settle()
    handle.send_rows((second.request_id, 1, NONE))
    await clock.advance(RENEW_PERIOD_S)
    assert handle.attached == ["a", "a"]
    (_, before), (_, after) = handle.renewed
    assert 0 < after == before


async def test_nothing_is_kept_of_requests_that_have_ended(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    handle.may_answer.clear()
    cancelled = asyncio.create_task(submit(client))
    await settle()
    cancelled.cancel()
    await asyncio.wait([cancelled])
    handle.may_answer.set()
    stream = await submit(client, n=2)
    handle.send_rows((stream.request_id, 1, LENGTH, 1), (stream.request_id, 1, LENGTH, 0))
    assert await read(stream) == [1, 1]
    assert len(client._requests) == 0
    handle.end_stream("a")
    await settle()
    assert client._tasks == set()
