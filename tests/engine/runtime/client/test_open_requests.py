"""Requests whose engine is lost go on elsewhere: each way to lose it, and each end of trying."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from engine.config import ResumeConfig
from engine.errors import EngineError, InvalidRequest, RequestCrashes
from engine.runtime.client.client import RemoteEngineClient
from engine.runtime.client.retries import MAX_DELAY_S
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.messages import OUTPUTS, encode_batch
from engine.runtime.outputs import failure
from engine.types import (
    FinishReason,
    Pin,
    Progress,
    Refusal,
    SamplingParams,
    float32,
    int32,
    int64,
)
from tests.fakes.engine_handle import (
    STATS,
    FakeEngineHandle,
    read,
    read_choices,
    submit,
    tokens_output,
)
from tests.fakes.loop_clock import LoopClock, settle

NONE, LENGTH, ABORT = FinishReason.NONE, FinishReason.LENGTH, FinishReason.ABORT
LOST, CRASHED, SOLO = FinishReason.LOST, FinishReason.CRASHED, FinishReason.CRASHED_SOLO
REBUILDING = Refusal(code="engine_unavailable", message="rebuilding", retry_after_s=1.0)
DIED = EngineError("replica a died")


@pytest.fixture
async def impatient(handle: FakeEngineHandle) -> AsyncIterator[RemoteEngineClient]:
    client = RemoteEngineClient(handle, resume=ResumeConfig(resume_timeout_s=10.0, max_resumes=2))
    yield client
    await client.close()


def progress_of(handle: FakeEngineHandle, index: int = -1) -> Progress:
    progress = handle.requests[index].progress
    assert progress is not None
    return progress


async def end(handle: FakeEngineHandle, stream: RemoteTokenStream, reason: FinishReason) -> None:
    """Let the engine that has a request end its only choice."""
    assert stream.replica is not None
    handle.send_rows((stream.submission_id, -1, reason), replica=stream.replica)
    await settle()


@pytest.mark.parametrize("reason", [LOST, CRASHED, None])
async def test_a_request_goes_on_with_another_engine_without_gap_or_repeat(
    client: RemoteEngineClient, handle: FakeEngineHandle, reason: FinishReason | None
) -> None:
    stream = await submit(client)
    handle.spare = "b"
    handle.send_rows((stream.request_id, 1, NONE))
    await settle()
    handle.send_rows((stream.request_id, 2, NONE))
    if reason is None:
        handle.end_stream("a", DIED)
        await settle()
    else:
        # the last token and the loss come in one message
        await end(handle, stream, reason)
    assert handle.avoided == [None, "a"]
    progress = progress_of(handle)
    assert (progress.tokens, progress.counts) == (int32([1, 2]), int32([2]))
    assert not progress.solo_tokens
    handle.send_rows((stream.submission_id, 3, LENGTH), replica="b")
    assert await read(stream) == [1, 2, 3]


async def test_tokens_and_loss_in_one_message_both_count(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=2)
    rows = [
        [(stream.request_id, 1, NONE, 0)],
        [(stream.request_id, -1, LOST, choice) for choice in (0, 1)],
    ]
    handle.send(encode_batch([OUTPUTS.encode(tokens_output(list(row))) for row in rows]))
    await settle()
    assert progress_of(handle).counts == int32([1, 0])
    assert len(handle.requests) == 2


async def test_what_a_lost_engine_still_sends_is_dropped_and_aborted(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.end_stream("a", DIED)
    await settle()
    # it was only out of reach, and has the request twice now
    assert stream.submission_id != stream.request_id
    assert handle.aborted == [("a", stream.request_id)]
    handle.send_rows((stream.request_id, 8, NONE), (stream.submission_id, 1, NONE))
    handle.send_rows((stream.request_id, 9, LENGTH), (stream.submission_id, 2, LENGTH))
    assert await read(stream) == [1, 2]
    assert handle.aborted == [("a", stream.request_id)] * 2


async def test_a_choice_that_has_ended_does_not_end_again(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=3)
    rows = [(stream.request_id, 5, NONE, choice) for choice in range(3)]
    handle.send_rows(*rows, (stream.request_id, 6, LENGTH, 1))
    await settle()
    await stream.abort_choice(2)
    handle.end_stream("a", DIED)
    await settle()
    progress = progress_of(handle)
    assert progress.finish_reasons.tolist() == [NONE, LENGTH, ABORT]
    assert (progress.counts, progress.tokens) == (int32([1, 0, 0]), int32([5]))
    new = stream.submission_id
    handle.send_rows((new, -1, LENGTH, 1), (new, -1, ABORT, 2), (new, 7, LENGTH, 0))
    ends = [row for row in await read_choices(stream) if row[2] is not NONE]
    assert ends == [(1, [5, 6], LENGTH), (0, [7], LENGTH)]
    assert len(client._requests) == 0


async def test_a_request_that_no_replica_takes_is_tried_again_and_comes_as_a_new_one(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    handle.failures = [EngineError("unreachable"), REBUILDING]
    submitting = asyncio.create_task(submit(client))
    await clock.advance(MAX_DELAY_S)
    assert len(handle.requests) == 2
    await clock.advance(MAX_DELAY_S)
    stream = await submitting
    assert len({request.request_id for request in handle.requests}) == 3
    # nothing has run it, so it may be refused like any new one
    assert [request.progress for request in handle.requests] == [None] * 3
    assert handle.avoided == [None, None, "a"]
    handle.send_rows((stream.submission_id, 1, LENGTH))
    assert await read(stream) == [1]


async def test_a_replica_that_builds_its_gang_anew_is_asked_again(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    stream = await submit(client)
    handle.failures = [REBUILDING] * 3
    await end(handle, stream, LOST)
    for _ in range(3):
        await clock.advance(MAX_DELAY_S)
    assert len(handle.requests) == 5
    assert progress_of(handle).age_s == pytest.approx(3 * MAX_DELAY_S)
    handle.send_rows((stream.submission_id, 1, LENGTH))
    assert await read(stream) == [1]


async def test_trying_ends_in_time(
    impatient: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    handle.failures = [EngineError("unreachable")] * 100
    submitting = asyncio.create_task(submit(impatient))
    for _ in range(20):
        await clock.advance(1.0)
    with pytest.raises(EngineError, match=r"for 10 s: unreachable"):
        await submitting
    assert 5 < len(handle.requests) < 20


async def test_the_time_of_a_request_that_loses_its_engine_begins_then(
    impatient: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    stream = await submit(impatient)
    await clock.advance(60.0)
    handle.failures = [EngineError("unreachable")] * 100
    await end(handle, stream, LOST)
    await clock.advance(9.0)
    assert not stream.has_ended
    for _ in range(5):
        await clock.advance(1.0)
    with pytest.raises(EngineError, match=r"for 10 s: unreachable"):
        await read(stream)
    assert len(impatient._requests) == 0


async def test_engines_are_lost_so_often_and_no_more(
    impatient: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(impatient)
    for _ in range(3):
        await end(handle, stream, CRASHED)
    with pytest.raises(EngineError, match="lost its engine 3 times"):
        await read(stream)
    assert len(handle.requests) == 3


async def test_who_shared_the_batch_with_it_is_not_given_up(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    guilty, neighbour = await submit(client), await submit(client)
    # they are in the batch together, then each by itself, and the one that ends gangs comes first
    for reasons in ((CRASHED, CRASHED), (CRASHED, CRASHED), (SOLO, LOST)):
        both = zip((guilty, neighbour), reasons, strict=True)
        handle.send_rows(*((stream.submission_id, -1, reason) for stream, reason in both))
        await settle()
    with pytest.raises(RequestCrashes, match=f"request {guilty.request_id} "):
        await read(guilty)
    assert progress_of(handle).solo_tokens > 0
    handle.send_rows((neighbour.submission_id, 4, LENGTH))
    assert await read(neighbour) == [4]


async def test_a_request_of_which_gangs_die_runs_by_itself_and_is_then_given_up(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    for reason in (CRASHED, LOST, CRASHED, LOST, SOLO):
        await end(handle, stream, reason)
    is_solo = [progress_of(handle, index).solo_tokens > 0 for index in range(1, 5)]
    assert is_solo == [False, False, True, True]
    assert len(handle.requests) == 5
    with pytest.raises(RequestCrashes, match=f"request {stream.request_id} was in the batch of 3"):
        await read(stream)


async def test_one_crash_of_several_choices_is_one(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=3)
    for is_solo in (False, True):
        reasons = enumerate((CRASHED, CRASHED, LOST))
        handle.send_rows(*((stream.submission_id, -1, reason, n) for n, reason in reasons))
        await settle()
        assert (progress_of(handle).solo_tokens > 0) == is_solo
    assert len(handle.requests) == 3


@pytest.mark.parametrize("in_output", [False, True])
async def test_a_refusal_of_what_was_accepted_is_an_error_of_the_engine(
    client: RemoteEngineClient, handle: FakeEngineHandle, in_output: bool
) -> None:
    stream = await submit(client)
    why = Refusal(code="invalid_value", message="no room", param="prompt")
    if not in_output:
        handle.refusal = why
    await end(handle, stream, LOST)
    if in_output:
        refused = failure([(stream.submission_id, 0)], STATS, why)
        handle.send(encode_batch([OUTPUTS.encode(refused)]))
    with pytest.raises(EngineError, match=r"to go on: no room"):
        await read(stream)
    assert len(client._requests) == 0


async def test_a_refusal_of_what_no_replica_has_accepted_is_the_clients(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    handle.failures = [REBUILDING, Refusal(code="invalid_value", message="no room")]
    submitting = asyncio.create_task(submit(client))
    await clock.advance(MAX_DELAY_S)
    with pytest.raises(InvalidRequest, match="no room"):
        await submitting


@pytest.mark.parametrize("is_submitted", [False, True])
async def test_an_abort_ends_a_request_that_no_engine_has(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock, is_submitted: bool
) -> None:
    stream = await submit(client)
    handle.failures = [EngineError("unreachable")]
    await end(handle, stream, LOST)
    if is_submitted:
        handle.may_answer.clear()
        await clock.advance(MAX_DELAY_S)
    await stream.abort()
    handle.may_answer.set()
    await clock.advance(10 * MAX_DELAY_S)
    assert await read_choices(stream) == [(0, [], ABORT)]
    assert len(handle.requests) == (3 if is_submitted else 2)
    # a submission without a verdict is withdrawn
    withdrawn = [("a", handle.requests[-1].request_id)] if is_submitted else []
    assert handle.aborted == withdrawn
    assert len(client._requests) == 0


async def test_a_choice_aborted_between_submission_and_verdict_is_aborted(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client, n=2)
    handle.may_answer.clear()
    handle.send_rows((stream.request_id, -1, LOST, 0), (stream.request_id, -1, LOST, 1))
    await settle()
    await stream.abort_choice(1)
    assert handle.aborted == []
    handle.may_answer.set()
    await settle()
    assert handle.aborted == [("a", stream.submission_id)]
    assert handle.aborted_choices == [1]


async def test_a_loss_before_the_verdict_makes_it_worth_nothing(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    first = await submit(client)
    handle.may_answer.clear()
    submitting = asyncio.create_task(submit(client))
    await settle()
    second = first.request_id + 1
    handle.send_rows((second, 1, NONE), (second, -1, LOST))
    await settle()
    handle.may_answer.set()
    stream = await submitting
    assert [request.request_id for request in handle.requests[1:]] == [second, second + 1]
    assert progress_of(handle).tokens == int32([1])
    handle.send_rows((stream.submission_id, 2, LENGTH))
    assert await read(stream) == [1, 2]


async def test_output_before_a_verdict_that_is_lost_is_kept(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    await submit(client)
    handle.may_answer.clear()
    handle.failures = [EngineError("no answer in time")]
    submitting = asyncio.create_task(submit(client))
    await settle()
    handle.send_rows((handle.requests[0].request_id + 1, 1, NONE))
    await settle()
    handle.may_answer.set()
    await clock.advance(MAX_DELAY_S)
    stream = await submitting
    assert progress_of(handle).tokens == int32([1])
    handle.send_rows((stream.submission_id, 2, LENGTH))
    assert await read(stream) == [1, 2]


async def test_a_stream_that_breaks_before_the_verdict_may_have_lost_tokens(
    client: RemoteEngineClient, handle: FakeEngineHandle, clock: LoopClock
) -> None:
    await submit(client)
    handle.may_answer.clear()
    submitting = asyncio.create_task(submit(client))
    await settle()
    handle.end_stream("a", DIED)
    await settle()
    handle.may_answer.set()
    await clock.advance(MAX_DELAY_S)
    stream = await submitting
    doubtful = handle.requests[0].request_id + 1
    assert stream.submission_id != doubtful
    assert ("a", doubtful) in handle.aborted


async def test_a_prefix_that_is_lost_is_not_resumed(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    pinning = asyncio.create_task(client.pin_prefix(int32([1, 2]), Pin(name="p")))
    await settle()
    handle.send_rows((handle.requests[0].request_id, -1, LOST))
    with pytest.raises(EngineError, match="have died"):
        await pinning
    assert len(handle.requests) == 1


async def test_close_ends_what_waits_for_an_engine(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    stream = await submit(client)
    handle.may_answer.clear()
    await end(handle, stream, LOST)
    await client.close()
    with pytest.raises(EngineError, match="closed"):
        await read(stream)


async def test_a_search_goes_on_from_its_steps(
    client: RemoteEngineClient, handle: FakeEngineHandle
) -> None:
    sampling = SamplingParams(max_tokens=5, n=1, beam_width=2, report_beams=True)
    stream = await client.submit(int32([1]), sampling)
    step = tokens_output([])
    ids = int64([stream.request_id] * 2)
    step = replace(
        step,
        beam_requests=ids,
        beam_indices=int32([0, 1]),
        beam_parents=int32([0, 0]),
        beam_tokens=int32([7, 8]),
        beam_logprobs=float32([-1.0, -2.0]),
    )
    handle.send(encode_batch([OUTPUTS.encode(step)]))
    await settle()
    handle.end_stream("a", DIED)
    await settle()
    search = progress_of(handle).search
    assert search is not None
    assert (search.counts, search.tokens) == (int32([2]), int32([7, 8]))
