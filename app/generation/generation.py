"""Runs one job on the engine: submits its prompts, merges their text, aborts what is left over."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from app.generation.cancellation import finish
from app.generation.prepare import Job, Prompt
from app.generation.prompt_reader import PromptReader
from app.protocol.answer import Usage
from app.text.beam_text import Progress
from app.text.choice_text import TextDelta
from app.text.vocabulary import Vocabulary
from engine.errors import PromptTooLong
from engine.runtime.protocol import EngineClient, TokenStream

News = tuple[int, TextDelta | Progress]


class Generation:
    """The answer to one job while it is made. Close it, whatever happened.

    The candidates of all prompts are numbered through, prompt by prompt.
    """

    def __init__(self, job: Job, readers: Sequence[PromptReader]) -> None:
        self._job = job
        self._readers = readers
        self._num_sampled = [0] * self.num_candidates

    @classmethod
    async def start(
        cls, client: EngineClient, job: Job, vocabulary: Vocabulary, salt: bytes
    ) -> "Generation":
        """Submit every prompt of a job; if one is refused, the others are undone.

        Args:
            salt: of the tenant, see `engine.types.Request`.

        Raises:
            PromptTooLong: naming the field of the request.
            InvalidRequest: if the engine cannot make so many sequences.
            Overloaded: if the engine's queue is full.
            EngineError: if no engine can be reached.
        """
        readers: list[PromptReader] = []
        try:
            for prompt in job.prompts:
                stream = await _submit(client, job, prompt, salt)
                readers.append(PromptReader(job, prompt, stream, vocabulary))
        except BaseException:
            await _abort(readers)
            raise
        return cls(job, readers)

    @property
    def num_candidates(self) -> int:
        """Sequences that are made; see `best`."""
        return len(self._job.prompts) * self._job.num_candidates

    @property
    def is_silent(self) -> bool:
        """Whether there is no news before the end."""
        return self._job.is_search or self._job.is_scoring

    async def close(self) -> None:
        """Abort the sequences that have not ended; completes even while being cancelled."""
        await _abort(self._readers)

    async def __aiter__(self) -> AsyncGenerator[News, None]:
        """Yield (candidate, news) as they come; progress belongs to its prompt's first candidate.

        Raises:
            EngineError: if the engine fails before the end.
        """
        readers = [self._read(index) for index in range(len(self._readers))]
        source = readers[0] if len(readers) == 1 else _merge(readers)
        # a generator that is left half-way must be closed by hand
        async with aclosing(source):
            async for news in source:
                yield news

    def best(self, texts: Sequence[TextDelta]) -> list[TextDelta]:
        """Of each prompt's whole candidates keep those with the likeliest tokens, best first.

        Without candidates to spare, order is kept: beams come best first.
        """
        num_choices, num_candidates = self._job.num_choices, self._job.num_candidates
        if num_choices == num_candidates:
            return list(texts)
        kept: list[TextDelta] = []
        for start in range(0, len(texts), num_candidates):
            ranked = sorted(texts[start : start + num_candidates], key=_mean_logprob, reverse=True)
            kept += ranked[:num_choices]
        return kept

    def usage(self, index: int) -> Usage:
        """Tokens of one candidate so far."""
        number = index // self._job.num_candidates
        return Usage(
            prompt_tokens=len(self._job.prompts[number].ids),
            completion_tokens=self._num_sampled[index],
            cached_tokens=self._readers[number].num_cached,
        )

    def total_usage(self) -> Usage:
        """Tokens of all candidates so far; each prompt counts once."""
        return Usage(
            prompt_tokens=sum(len(prompt.ids) for prompt in self._job.prompts),
            completion_tokens=sum(self._num_sampled),
            cached_tokens=sum(reader.num_cached for reader in self._readers),
        )

    async def _read(self, number: int) -> AsyncGenerator[News, None]:
        reader, num_candidates = self._readers[number], self._job.num_candidates
        # equal sequences are computed once and told of several times
        num_copies = num_candidates // reader.num_choices
        async with aclosing(aiter(reader)) as source:
            async for choice, news in source:
                start = number * num_candidates + choice * num_copies
                if isinstance(news, Progress):
                    yield start, news
                    continue
                for index in range(start, start + num_copies):
                    self._num_sampled[index] += len(news.token_ids)
                    yield index, news


async def _submit(
    client: EngineClient, job: Job, prompt: Prompt, salt: bytes
) -> TokenStream | None:
    if prompt.sampling is None:
        return None
    ids = prompt.ids[:-1] if job.is_scoring else prompt.ids
    try:
        return await client.submit(ids, prompt.sampling, salt=salt)
    except PromptTooLong as error:
        # the engine does not know what the request called its prompt
        error.param = prompt.name
        raise


def _mean_logprob(text: TextDelta) -> float:
    return text.logprob / max(1, len(text.token_ids))


async def _merge(
    readers: Sequence[AsyncGenerator[News, None]],
) -> AsyncGenerator[News, None]:
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


async def _abort(readers: Sequence[PromptReader]) -> None:
    aborts = [reader.abort() for reader in readers]
    if not aborts:
        return
    for error in await finish(asyncio.gather(*aborts, return_exceptions=True)):
        if error is not None:
            raise error
