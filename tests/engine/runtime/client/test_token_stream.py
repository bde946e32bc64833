import asyncio
from array import array
from dataclasses import replace

import pytest

from engine.config import ResumeConfig
from engine.errors import EngineError
from engine.runtime.client.journal import Journal
from engine.runtime.client.retries import Retries
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.protocol import Delta
from engine.types import (
    ALL_CHOICES,
    BEAM_CHOICE,
    PROMPT_CHOICE,
    FinishReason,
    Progress,
    Request,
    SamplingParams,
    float32,
    int32,
)
from tests.fakes.loop_clock import settle

NONE, LENGTH, ABORT = FinishReason.NONE, FinishReason.LENGTH, FinishReason.ABORT


Aborts = list[tuple[int, int]]


@pytest.fixture
def aborts() -> Aborts:
    """(request id, choice) of what is to be ended."""
    return []


@pytest.fixture
def stream(aborts: Aborts) -> RemoteTokenStream:
    async def send_abort(stream: RemoteTokenStream, choice: int) -> None:
        aborts.append((stream.request_id, choice))

    return RemoteTokenStream(7, 2, send_abort)


def delta(choice: int, token: int, reason: FinishReason = NONE) -> Delta:
    return Delta(
        choice=choice, tokens=int32([token]), logprobs=float32([0.0]), finish_reason=reason
    )


async def read(stream: RemoteTokenStream) -> list[tuple[int, list[int], FinishReason]]:
    """To the end; hangs where the stream does not end."""
    return [(delta.choice, delta.tokens.tolist(), delta.finish_reason) async for delta in stream]


async def test_a_stream_ends_after_the_last_delta_of_its_last_choice(
    stream: RemoteTokenStream,
) -> None:
    stream.put(delta(1, 5, LENGTH))
    assert not stream.has_ended
    stream.put(delta(0, 6))
    stream.put(delta(0, 7, LENGTH))
    assert stream.has_ended
    assert await read(stream) == [(1, [5], LENGTH), (0, [6], NONE), (0, [7], LENGTH)]
    assert await read(stream) == []


async def test_what_comes_after_the_end_of_a_choice_is_dropped(stream: RemoteTokenStream) -> None:
    stream.put(delta(1, 5, LENGTH))
    stream.put(delta(1, 6))
    stream.put(delta(1, 7, LENGTH))
    stream.put(delta(0, 8, LENGTH))
    assert await read(stream) == [(1, [5], LENGTH), (0, [8], LENGTH)]


async def test_the_prompt_and_the_steps_of_a_search_pass_and_end_nothing(
    stream: RemoteTokenStream,
) -> None:
    for choice in (PROMPT_CHOICE, BEAM_CHOICE):
        stream.put(delta(choice, 5, LENGTH))
    assert not stream.has_ended
    await stream.abort()
    assert [choice for choice, _, _ in await read(stream)] == [PROMPT_CHOICE, BEAM_CHOICE, 0, 1]


async def test_end_aborts_the_choices_that_go_on_and_no_other(stream: RemoteTokenStream) -> None:
    stream.put(delta(0, 5, LENGTH))
    await stream.abort()
    await stream.abort()
    assert stream.has_ended
    assert await read(stream) == [(0, [5], LENGTH), (1, [], ABORT)]


async def test_a_failure_is_raised_once_after_what_came_before(stream: RemoteTokenStream) -> None:
    stream.put(delta(0, 5))
    stream.fail(EngineError("first"))
    stream.fail(EngineError("second"))
    assert stream.has_ended
    deltas = aiter(stream)
    assert (await anext(deltas)).tokens.tolist() == [5]
    with pytest.raises(EngineError, match="first"):
        await anext(deltas)
    assert await read(stream) == []


async def test_a_failure_after_the_end_changes_nothing(stream: RemoteTokenStream) -> None:
    await stream.abort()
    stream.fail(EngineError("late"))
    assert len(await read(stream)) == 2


async def test_an_aborted_choice_is_aborted_once_and_says_nothing_more(
    stream: RemoteTokenStream, aborts: Aborts
) -> None:
    await stream.abort_choice(1)
    await stream.abort_choice(1)
    await stream.abort_choice(5)
    assert aborts == [(7, 1)]
    stream.put(delta(1, 5))
    stream.put(delta(0, 6, LENGTH))
    assert await read(stream) == [(0, [6], LENGTH)]


async def test_abort_ends_the_request_once(stream: RemoteTokenStream, aborts: Aborts) -> None:
    await stream.abort()
    await stream.abort()
    assert aborts == [(7, ALL_CHOICES)]


def kept_stream() -> RemoteTokenStream:
    """A stream of two choices that goes on elsewhere when its engine is lost."""

    async def send_abort(stream: RemoteTokenStream, choice: int) -> None:
        pass

    sampling = SamplingParams(max_tokens=9, n=2)
    request = Request(request_id=7, prompt=int32([1]), sampling=sampling)
    return RemoteTokenStream(
        7,
        2,
        send_abort,
        journal=Journal(request, 10.0),
        retries=Retries(ResumeConfig(), 7, 10.0),
    )


async def test_a_request_goes_on_as_one_that_was_accepted() -> None:
    stream = kept_stream()
    stream.submission_id = 8
    assert not stream.is_resumed
    assert (stream.request_now(11.0).request_id, stream.request_now(11.0).progress) == (8, None)
    assert stream.retries is not None
    stream.retries.engine_lost(11.0, EngineError("gone"), FinishReason.CRASHED)
    assert stream.is_resumed
    assert stream.request_now(12.0).progress == Progress(
        age_s=2.0, finish_reasons=array("b", [0, 0]), counts=int32([0, 0])
    )
    stream.retries.engine_lost(11.0, EngineError("gone"), FinishReason.CRASHED)
    again = stream.request_now(12.0).progress
    assert again is not None
    assert again.solo_tokens > 0


async def test_what_the_reader_gets_is_what_goes_on() -> None:
    stream = kept_stream()
    stream.put(delta(0, 5))
    stream.put(delta(1, 6, LENGTH))
    # nothing of a choice that has ended counts
    stream.put(delta(1, 7))
    progress = stream.request_now(11.0).progress
    assert progress is not None
    assert progress.finish_reasons.tolist() == [NONE, LENGTH]
    assert (progress.counts, progress.tokens) == (int32([1, 0]), int32([5]))
    await stream.abort_choice(0)
    progress = stream.request_now(11.0).progress
    assert progress is not None
    assert progress.finish_reasons.tolist() == [ABORT, LENGTH]


async def test_of_a_loss_the_tokens_count_and_the_end_does_not() -> None:
    stream = kept_stream()
    stream.put_lost(delta(0, 5, FinishReason.LOST))
    stream.put_lost(replace(delta(0, 0, FinishReason.CRASHED), tokens=int32()))
    assert stream.open_choices == {0, 1}
    stream.put(delta(0, 6, LENGTH))
    stream.put(delta(1, 7, LENGTH))
    assert [tokens for _, tokens, _ in await read(stream)] == [[5], [6], [7]]


async def waiting(stream: RemoteTokenStream) -> "asyncio.Task[list[Delta]]":
    async def read_all() -> list[Delta]:
        return [delta async for delta in stream]

    task = asyncio.create_task(read_all())
    await settle()
    return task


async def test_what_is_offered_while_the_reader_waits_is_taken_but_for_the_end(
    stream: RemoteTokenStream,
) -> None:
    taken: list[Delta] = []

    def take(delta: Delta) -> bool:
        if delta.choice == 0:
            taken.append(delta)
        return delta.choice == 0

    stream.offer_to(take)
    unread = delta(0, 1)
    # nobody waits
    stream.put(unread)
    reading = await waiting(stream)
    stream.put(delta(0, 2))
    # left by who it is offered to, so that it waits to be read, and what follows behind it
    stream.put(delta(1, 3))
    stream.put(delta(0, 4))
    await settle()
    stream.put(delta(0, 5))
    stream.put(delta(0, 6, LENGTH))
    stream.put(delta(1, 7, LENGTH))
    assert [each.tokens[0] for each in taken] == [2, 5]
    assert [each.tokens[0] for each in await reading] == [1, 3, 4, 6, 7]


async def test_who_fails_to_take_a_delta_fails_its_stream_only(stream: RemoteTokenStream) -> None:
    def fail(delta: Delta) -> bool:
        raise ValueError("a bug")

    stream.offer_to(fail)
    reading = await waiting(stream)
    stream.put(delta(0, 2))
    await settle()
    assert reading.done()
    with pytest.raises(EngineError, match="was lost"):
        await reading
    assert stream.has_ended
