"""Turns the engine's news of one prompt into news of its choices."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

from app.generation.cancellation import finish
from app.generation.prepare import Job, Prompt
from app.text.beam_text import BeamTexts, Progress
from app.text.choice_text import ChoiceText, TextDelta, check_alive, join
from app.text.prompt_text import PromptText
from app.text.vocabulary import Vocabulary
from engine.errors import EngineError
from engine.runtime.protocol import Delta, TokenStream
from engine.types import BEAM_CHOICE, PROMPT_CHOICE, FinishReason

# how often the progress of a search is told; what comes between replaces what came before
PROGRESS_PERIOD_S = 0.1

_BROKEN_OFF = "the engine ended a stream before its end"


class PromptReader:
    """Reads one stream of the engine to its end, or to the end of the last choice's text.

    Args:
        stream: None where nothing was asked of the engine.

    Attributes:
        num_cached: tokens of the prompt that the engine found in its prefix cache, as far as told.
    """

    def __init__(
        self, job: Job, prompt: Prompt, stream: TokenStream | None, vocabulary: Vocabulary
    ) -> None:
        self.num_cached = 0
        self._stream = stream
        self._is_scoring = job.is_scoring
        self._prompt = PromptText(vocabulary, job.prompt_text, prompt.ids, prompt.text)
        self.num_choices = 1 if prompt.sampling is None else prompt.sampling.n
        self._open = {
            choice: ChoiceText(vocabulary, job.text, start=len(self._prompt.text))
            for choice in range(self.num_choices)
        }
        self._unopened = set(self._open)
        self._beams = None
        if prompt.sampling is not None and prompt.sampling.tell_beams:
            self._beams = BeamTexts(
                vocabulary,
                job.text,
                num_shown=self.num_choices,
                length_penalty=prompt.sampling.length_penalty,
            )
        self._next_progress_s = 0.0
        self._held: list[Delta] = []
        # choices that the engine goes on with, and those that it should not
        self._running = set(self._open)
        self._cut: list[int] = []

    async def abort(self) -> None:
        """Abort the sequences that have not ended; completes even while being cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            # a dead engine holds nothing that could be freed
            with suppress(EngineError):
                await finish(asyncio.ensure_future(stream.abort()))

    async def __aiter__(self) -> AsyncGenerator[tuple[int, TextDelta | Progress], None]:
        """Yield (choice, news) as they come; progress of a search comes with choice 0.

        Raises:
            EngineError: if the engine fails before the end.
        """
        if self._is_scoring:
            yield 0, await self._score()
            return
        assert self._stream is not None
        async for delta in self._stream:
            check_alive(delta)
            self.num_cached += delta.num_cached
            for progress in self._follow(delta):
                yield 0, progress
            for news in self._take(self._due(delta)):
                if not self._open:
                    await self._end()
                await self._abort_cut()
                yield news
            if not self._open:
                return
        raise EngineError(_BROKEN_OFF)

    def _follow(self, delta: Delta) -> Iterator[Progress]:
        """Follow the beams of a search; yield what is to be told of them, if it is time."""
        if delta.choice != BEAM_CHOICE:
            return
        assert self._beams is not None
        self._beams.push(delta.beam_steps)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_progress_s:
            self._next_progress_s = now_s + PROGRESS_PERIOD_S
            yield self._beams.best()

    def _due(self, delta: Delta) -> list[Delta]:
        """Return the news of choices that may be told.

        They wait until everything is known of the prompt, which opens them.
        """
        if delta.choice == PROMPT_CHOICE:
            self._prompt.push(delta)
        elif delta.choice != BEAM_CHOICE:
            self._held.append(delta)
        if self._prompt.num_missing:
            return []
        due, self._held = self._held, []
        return due

    def _take(self, deltas: list[Delta]) -> Iterator[tuple[int, TextDelta]]:
        for delta in deltas:
            if delta.finish_reason is not FinishReason.NONE:
                self._running.discard(delta.choice)
            choice = self._open.get(delta.choice)
            if choice is None:
                # it ended by a stop string, which the engine cannot see
                continue
            news = choice.push(delta)
            if news.finish_reason is not None:
                del self._open[delta.choice]
                if delta.choice in self._running:
                    self._cut.append(delta.choice)
            if delta.choice in self._unopened:
                self._unopened.remove(delta.choice)
                news = join([self._prompt.opening(), news])
            yield delta.choice, news

    async def _end(self) -> None:
        if self._running:
            await self.abort()
        self._stream = None

    async def _abort_cut(self) -> None:
        """Spare the engine the choices that a stop string has ended while others go on."""
        cut, self._cut = self._cut, []
        for choice in cut:
            self._running.discard(choice)
            if self._stream is not None:
                # a dead engine tells of it by itself
                with suppress(EngineError):
                    await self._stream.abort_choice(choice)

    async def _score(self) -> TextDelta:
        """Read scores only; the token that the engine says is the prompt's last."""
        said: list[Delta] = []
        if self._stream is not None:
            async for delta in self._stream:
                check_alive(delta)
                if delta.choice == PROMPT_CHOICE:
                    self._prompt.push(delta)
                else:
                    said.append(delta)
        self._stream = None
        for delta in said:
            self._prompt.push(delta)
        if self._prompt.num_missing:
            raise EngineError(_BROKEN_OFF)
        return join([self._prompt.opening(), TextDelta(text="", finish_reason="length")])
