"""Turns the engine's news of one prompt into news of its choices."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

from app.jobs import Job, Prompt
from app.tasks import finish
from app.text.choice_text import ChoiceText, TextDelta, check_alive, join
from app.text.prompt_text import PromptText
from app.text.vocabulary import Vocabulary
from engine.errors import EngineError
from engine.runtime.protocol import Delta, TokenStream
from engine.types import PROMPT_CHOICE, FinishReason

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
        # sequences that the engine goes on with
        self._num_running = self.num_choices

    async def abort(self) -> None:
        """Abort the sequences that have not ended; completes even while being cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            # a dead engine holds nothing that could be freed
            with suppress(EngineError):
                await finish(asyncio.ensure_future(stream.abort()))

    async def __aiter__(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """Yield (choice, news) as they come.

        Raises:
            EngineError: if the engine fails before the end.
        """
        if self._is_scoring:
            yield 0, await self._score()
            return
        assert self._stream is not None
        # choices wait until everything is known of the prompt, which opens them
        held: list[Delta] = []
        async for delta in self._stream:
            check_alive(delta)
            self.num_cached += delta.num_cached
            if delta.choice == PROMPT_CHOICE:
                self._prompt.push(delta)
            else:
                held.append(delta)
            if self._prompt.num_missing:
                continue
            arrived, held = held, []
            for news in self._take(arrived):
                if not self._open:
                    await self._end()
                yield news
            if not self._open:
                return
        raise EngineError(_BROKEN_OFF)

    def _take(self, deltas: list[Delta]) -> Iterator[tuple[int, TextDelta]]:
        for delta in deltas:
            if delta.finish_reason is not FinishReason.NONE:
                self._num_running -= 1
            choice = self._open.get(delta.choice)
            if choice is None:
                # it ended by a stop string, which the engine cannot see
                continue
            news = choice.push(delta)
            if news.finish_reason is not None:
                del self._open[delta.choice]
            if delta.choice in self._unopened:
                self._unopened.remove(delta.choice)
                news = join([self._prompt.opening(), news])
            yield delta.choice, news

    async def _end(self) -> None:
        if self._num_running:
            await self.abort()
        self._stream = None

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
