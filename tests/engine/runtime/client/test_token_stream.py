import pytest

from engine.errors import EngineError
from engine.runtime.client.token_stream import RemoteTokenStream
from engine.runtime.protocol import Delta
from engine.types import ALL_CHOICES, BEAM_CHOICE, PROMPT_CHOICE, FinishReason, float32, int32

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
