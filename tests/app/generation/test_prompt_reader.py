"""One stream of the engine becomes the texts of its choices; what is not needed is aborted."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from app.generation import prompt_reader
from app.generation.prompt_reader import PromptReader
from app.generation.request.prepare import GenerationOptions, Prompt
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta, join
from app.text.offload import Offload
from app.text.prompt_text import PromptText
from app.text.text_options import TextOptions
from engine.errors import EngineError, WorkerDied
from engine.runtime.protocol import BeamStep, Delta, TakeDelta
from engine.types import (
    ALL_CHOICES,
    BEAM_CHOICE,
    PROMPT_CHOICE,
    EventKind,
    FinishReason,
    SamplingParams,
    float32,
    int32,
)
from tests.app.text.tokenizers import spelled_vocabulary

WORDS = spelled_vocabulary("one", " two", " three", "!")


class ListedStream:
    """Yields what a test lists and remembers what is aborted. Implements `TokenStream`."""

    def __init__(self, deltas: Sequence[Delta], abort_error: Exception | None = None) -> None:
        self.request_id = 0
        self.events: list[tuple[EventKind, int]] = []
        self.aborted: list[int] = []
        self.num_read = 0
        self.abort_gate: asyncio.Event | None = None
        self._deltas = deltas
        self._abort_error = abort_error

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self._deltas:
            self.num_read += 1
            yield delta

    def offer_to(self, take: TakeDelta) -> None:
        pass

    async def abort(self) -> None:
        if self.abort_gate is not None:
            await self.abort_gate.wait()
        self.aborted.append(ALL_CHOICES)
        if self._abort_error is not None:
            raise self._abort_error

    async def abort_choice(self, choice: int) -> None:
        self.aborted.append(choice)
        if self._abort_error is not None:
            raise self._abort_error


def said(*tokens: int, choice: int = 0, ends: bool = False, num_cached: int = 0) -> Delta:
    """Tokens have their negated ids as log-probabilities."""
    return Delta(
        choice=choice,
        tokens=int32(tokens),
        logprobs=float32([-float(token) for token in tokens]),
        finish_reason=FinishReason.LENGTH if ends else FinishReason.NONE,
        num_cached=num_cached,
    )


def scores(*tokens: int) -> Delta:
    return said(*tokens, choice=PROMPT_CHOICE)


def reader_of(
    stream: ListedStream | None,
    sampling: SamplingParams | None = None,
    *,
    text: TextOptions | None = None,
    **fields: Any,
) -> PromptReader:
    """Read the answer to the prompt "one two three"."""
    prompt = Prompt(name="prompt", ids=int32([0, 1, 2]), sampling=sampling)
    options = GenerationOptions(text=text or TextOptions(), **fields)
    said = PromptText(WORDS, options.text, prompt.ids, prompt.parts)
    return PromptReader(options, prompt, stream, said, Offload())


def choices(n: int) -> SamplingParams:
    return SamplingParams(max_tokens=8, n=n)


async def read(reader: PromptReader) -> dict[int, TextDelta]:
    """Return each choice put together."""
    parts: dict[int, list[TextDelta]] = {}
    async for choice, part in reader:
        assert isinstance(part, TextDelta)
        parts.setdefault(choice, []).append(part)
    return {choice: join(of_choice) for choice, of_choice in parts.items()}


async def test_each_choice_has_its_own_text() -> None:
    turns = [said(0), said(3, choice=1), said(1, ends=True), said(2, choice=1, ends=True)]
    stream = ListedStream(turns)
    found = await read(reader_of(stream, choices(2)))
    assert {choice: part.text for choice, part in found.items()} == {0: "one two", 1: "! three"}
    assert stream.aborted == []


async def test_a_choice_that_a_stop_string_ends_is_aborted_while_the_others_go_on() -> None:
    turns = [
        said(0, 1),
        said(0, choice=1),
        said(3),
        said(2, choice=1),
        said(3, choice=1, ends=True),
    ]
    stream = ListedStream(turns)
    found = await read(reader_of(stream, choices(2), text=TextOptions(stops=("two",))))
    assert (found[0].text, found[0].stop_reason, found[0].token_ids) == ("one ", "two", (0, 1))
    assert (found[1].text, found[1].stop_reason) == ("one three!", None)
    assert stream.aborted == [0]


async def test_the_request_is_aborted_once_every_choice_has_met_a_stop_string() -> None:
    stream = ListedStream([said(1), said(1, choice=1), said(2), said(2, choice=1)])
    found = await read(reader_of(stream, choices(2), text=TextOptions(stops=("two",))))
    assert [part.text for part in found.values()] == [" ", " "]
    assert stream.aborted == [0, ALL_CHOICES]
    # what comes behind the end is not waited for
    assert stream.num_read == 2


async def test_a_stop_string_with_the_last_token_leaves_nothing_to_abort() -> None:
    stream = ListedStream([said(0, 1, ends=True)])
    found = await read(reader_of(stream, choices(1), text=TextOptions(stops=("two",))))
    assert (found[0].text, found[0].finish_reason) == ("one ", "stop")
    assert stream.aborted == []


async def test_what_has_ended_is_not_aborted() -> None:
    stream = ListedStream([said(0, ends=True)])
    reader = reader_of(stream, choices(1))
    await read(reader)
    await reader.abort()
    assert stream.aborted == []


async def test_a_reader_that_is_left_early_aborts_the_request_once() -> None:
    stream = ListedStream([said(0), said(1, ends=True)])
    reader = reader_of(stream, choices(1))
    await anext(aiter(reader))
    await reader.abort()
    await reader.abort()
    assert stream.aborted == [ALL_CHOICES]


async def test_an_abort_completes_while_it_is_cancelled() -> None:
    stream, gate = ListedStream([said(0)]), asyncio.Event()
    stream.abort_gate = gate
    task = asyncio.ensure_future(reader_of(stream, choices(1)).abort())
    for _ in range(3):
        # lets it begin, and lets the cancellation arrive
        await asyncio.wait({task}, timeout=0)
        task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.aborted == [ALL_CHOICES]


async def test_a_dead_engine_has_nothing_to_abort() -> None:
    turns = [said(1), said(0, choice=1, ends=True)]
    stream = ListedStream(turns, abort_error=WorkerDied("gone"))
    await read(reader_of(stream, choices(2), text=TextOptions(stops=("two",))))
    assert stream.aborted == [0]
    left = ListedStream([said(0)], abort_error=WorkerDied("gone"))
    await reader_of(left, choices(1)).abort()
    assert left.aborted == [ALL_CHOICES]


async def test_each_choice_begins_with_the_prompt_and_only_once() -> None:
    turns = [said(3), said(3, choice=1), said(3, ends=True), said(3, choice=1, ends=True)]
    options = TextOptions(echo=True)
    found = await read(reader_of(ListedStream(turns), choices(2), text=options))
    assert [part.text for part in found.values()] == ["one two three!!"] * 2


async def test_text_positions_go_on_behind_the_prompt() -> None:
    stream = ListedStream([scores(1, 2), said(3, 0, ends=True)])
    text = TextOptions(echo=True, num_logprobs=0)
    [answer] = (await read(reader_of(stream, choices(1), text=text))).values()
    assert [(entry.offset, entry.logprob) for entry in answer.logprobs] == [
        (0, None),
        (3, -1.0),
        (7, -2.0),
        (13, -3.0),
        (14, 0.0),
    ]


async def test_text_waits_for_the_scores_of_the_prompt() -> None:
    """The last of them may come behind the first token."""
    stream = ListedStream([scores(1), said(3), scores(2), said(0, ends=True)])
    reader = reader_of(stream, choices(1), text=TextOptions(num_prompt_logprobs=0))
    _, first = await anext(aiter(reader))
    assert isinstance(first, TextDelta)
    assert (first.text, stream.num_read) == ("!", 3)
    assert [entry.logprob for entry in first.prompt] == [None, -1.0, -2.0]


async def test_the_tokens_of_the_prompt_come_with_the_first_text_only() -> None:
    stream = ListedStream([scores(1, 2), said(3), said(0, ends=True)])
    reader = reader_of(stream, choices(1), text=TextOptions(num_prompt_logprobs=0))
    parts = [part async for _, part in reader]
    assert [len(part.prompt) for part in parts if isinstance(part, TextDelta)] == [3, 0]


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.ERROR])
async def test_a_request_that_the_engine_gave_up_is_an_error(finish: FinishReason) -> None:
    given_up = Delta(choice=0, tokens=int32(), logprobs=float32(), finish_reason=finish)
    for is_scoring in (False, True):
        with pytest.raises(EngineError):
            await read(reader_of(ListedStream([given_up]), choices(1), is_scoring=is_scoring))


async def test_a_stream_without_an_end_is_an_error() -> None:
    with pytest.raises(EngineError, match="before its end"):
        await read(reader_of(ListedStream([said(0)]), choices(1)))
    stream, options = ListedStream([scores(1)]), TextOptions(num_prompt_logprobs=0)
    with pytest.raises(EngineError, match="before its end"):
        await read(reader_of(stream, choices(1), text=options, is_scoring=True))


async def test_cached_tokens_are_those_of_all_deltas() -> None:
    stream = ListedStream([said(3, num_cached=2), said(3), said(3, ends=True)])
    reader = reader_of(stream, choices(1))
    assert reader.num_cached == 0
    await read(reader)
    assert reader.num_cached == 2


async def test_a_prompt_that_is_only_scored_ends_without_a_token() -> None:
    """The token that the engine is made to say is the prompt's last."""
    stream = ListedStream([said(2, ends=True), scores(1)])
    options = TextOptions(echo=True, num_logprobs=0)
    reader = reader_of(stream, choices(1), text=options, is_scoring=True)
    [answer] = (await read(reader)).values()
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("one two three", (), "length")
    assert [entry.logprob for entry in answer.logprobs] == [None, -1.0, -2.0]
    await reader.abort()
    assert stream.aborted == []


async def test_a_prompt_that_is_only_echoed_needs_no_engine() -> None:
    reader = reader_of(None, text=TextOptions(echo=True), is_scoring=True)
    [answer] = (await read(reader)).values()
    assert (answer.text, answer.finish_reason) == ("one two three", "length")
    await reader.abort()


@pytest.mark.parametrize(("period_s", "shown"), [(0.0, ["one", "one two"]), (1e9, ["one"])])
async def test_the_beams_of_a_search_are_shown_now_and_then(
    period_s: float, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_reader, "PROGRESS_PERIOD_S", period_s)
    search = SamplingParams(max_tokens=8, n=1, beam_width=2, report_beams=True)
    reader = reader_of(ListedStream([beams(0), beams(1), said(0, 1, ends=True)]), search)
    parts = [part async for choice, part in reader if choice == 0]
    progress = [part.beams[0].text for part in parts if isinstance(part, BeamProgress)]
    assert progress == shown
    assert isinstance(parts[-1], TextDelta)
    assert parts[-1].text == "one two"


def beams(token: int) -> Delta:
    step = BeamStep(
        indices=int32([0]), parents=int32([0]), tokens=int32([token]), logprobs=float32([-1.0])
    )
    return Delta(choice=BEAM_CHOICE, tokens=int32(), logprobs=float32(), beam_steps=(step,))
