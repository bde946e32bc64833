"""Runs one job on the engine: submits its prompts, merges their text, aborts what is left over."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from app.jobs import Job
from app.protocol.answer import Usage
from app.tasks import finish
from app.text.choice_text import ChoiceText, TextDelta
from app.text.vocabulary import Vocabulary
from engine.errors import EngineError, PromptTooLong
from engine.runtime.protocol import EngineClient, TokenStream
from engine.types import FinishReason


class Generation:
    """The answer to one job while it is made. Close it, whatever happened."""

    def __init__(self, job: Job, streams: Sequence[TokenStream], vocabulary: Vocabulary) -> None:
        self._job = job
        self._streams = streams
        self._open = set(range(len(streams)))
        self._choices = [ChoiceText(vocabulary, job.text) for _ in streams]
        self._num_sampled = [0] * len(streams)

    @classmethod
    async def start(cls, client: EngineClient, job: Job, vocabulary: Vocabulary) -> "Generation":
        """Submit every prompt of a job; if one is refused, the others are undone.

        Raises:
            PromptTooLong: naming the field of the request.
            Overloaded: if the engine's queue is full.
            EngineError: if no engine can be reached.
        """
        streams: list[TokenStream] = []
        try:
            for prompt in job.prompts:
                try:
                    streams.append(await client.submit(prompt.ids, prompt.sampling))
                except PromptTooLong as error:
                    # the engine does not know what the request called its prompt
                    error.param = prompt.name
                    raise
        except BaseException:
            await _abort(streams)
            raise
        return cls(job, streams, vocabulary)

    @property
    def num_choices(self) -> int:
        """Sequences that are made."""
        return len(self._streams)

    async def close(self) -> None:
        """Abort the sequences that have not ended; completes even while being cancelled."""
        await _abort([self._streams[index] for index in self._open])
        self._open.clear()

    async def __aiter__(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """Yield (choice, news) as they come.

        Raises:
            EngineError: if the engine fails before the end.
        """
        readers = [self._read(index) for index in range(len(self._streams))]
        source = readers[0] if len(readers) == 1 else _merge(readers)
        # a generator that is left half-way must be closed by hand
        async with aclosing(source):
            async for news in source:
                yield news

    def usage(self, index: int) -> Usage:
        """Tokens of one choice so far."""
        return Usage(
            prompt_tokens=len(self._job.prompts[index].ids),
            completion_tokens=self._num_sampled[index],
        )

    def total_usage(self) -> Usage:
        """Tokens of all choices so far."""
        return Usage(
            prompt_tokens=sum(len(prompt.ids) for prompt in self._job.prompts),
            completion_tokens=sum(self._num_sampled),
        )

    async def _read(self, index: int) -> AsyncGenerator[tuple[int, TextDelta], None]:
        stream = self._streams[index]
        async for delta in stream:
            news = self._choices[index].push(delta)
            self._num_sampled[index] += len(news.token_ids)
            if news.finish_reason is not None:
                self._open.discard(index)
                if delta.finish_reason is FinishReason.NONE:
                    # a stop string, which the engine cannot see
                    await _abort([stream])
            yield index, news
            if news.finish_reason is not None:
                return
        raise EngineError("the engine ended a stream before its end")


async def _merge(
    readers: Sequence[AsyncGenerator[tuple[int, TextDelta], None]],
) -> AsyncGenerator[tuple[int, TextDelta], None]:
    waiting = {asyncio.ensure_future(anext(reader, None)): reader for reader in readers}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                reader = waiting.pop(task)
                if (news := task.result()) is not None:
                    waiting[asyncio.ensure_future(anext(reader, None))] = reader
                    yield news
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _abort(streams: Sequence[TokenStream]) -> None:
    if streams:
        await finish(asyncio.ensure_future(_abort_each(streams)))


async def _abort_each(streams: Sequence[TokenStream]) -> None:
    for error in await asyncio.gather(
        *(stream.abort() for stream in streams), return_exceptions=True
    ):
        # a dead engine holds nothing that could be freed
        if isinstance(error, BaseException) and not isinstance(error, EngineError):
            raise error
