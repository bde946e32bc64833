"""Runs the prompts of one request on the engine and merges their texts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from app.generation.allowance import Allowance, AnswerClock
from app.generation.cancellation import finish
from app.generation.intervals import ChoiceUpdate, in_intervals
from app.generation.outlet import Outlet
from app.generation.prompt_reader import PromptReader
from app.generation.request.prepare import GenerationOptions, Prompt
from app.generation.request.prompt_encoder import PromptEncoder
from app.generation.tenancy import session_key
from app.protocol.answer import Usage
from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta
from app.text.prompt_text import PromptText
from engine.errors import PromptTooLong
from engine.runtime.protocol import EngineClient, TokenStream
from engine.types import EventKind, Terms

_UNLIMITED = Allowance()


# called for each candidate with its index, new tokens, and its reason to end or None
Note = Callable[[int, int, str | None], None]


class Generation:
    """The answer to one request while it is generated. Close it, whatever happened.

    The candidates of all prompts are numbered through, prompt by prompt.

    Attributes:
        note: hears what is read of each candidate.
    """

    def __init__(
        self,
        options: GenerationOptions,
        readers: Sequence[PromptReader],
        clock: AnswerClock,
    ) -> None:
        """Args: readers: one per prompt, in order; clock: ends it when it is late."""
        self.note: Note = lambda index, num_tokens, reason: None
        self._options = options
        self._clock = clock
        self._readers = readers
        self._num_sampled = [0] * self.num_candidates

    @classmethod
    async def start(
        cls,
        client: EngineClient,
        prompts: Sequence[Prompt],
        options: GenerationOptions,
        encoder: PromptEncoder,
        salt: bytes,
        allowance: Allowance = _UNLIMITED,
    ) -> "Generation":
        """Submit every prompt of a request; if one is refused, those before it are aborted.

        Args:
            encoder: of the prompts; its vocabulary turns what follows them into text.
            salt: of the tenant, see `engine.types.Request`.
            allowance: what it may take of the engine and of time, from now on.

        Raises:
            PromptTooLong: naming the field of the request.
            InvalidRequest: if the engine cannot make so many sequences.
            Overloaded: if the engine's queue is full, or it would wait there for too long.
            DeadlineExceeded: if no engine accepts it in time.
            EngineError: if no engine can be reached.
        """
        readers: list[PromptReader] = []
        vocabulary, offload = encoder.vocabulary, encoder.offload
        clock = allowance.clock()
        try:
            for prompt in prompts:
                size = len(prompt.ids) if options.text.repeats_prompt else 0
                make = partial(PromptText, vocabulary, options.text, prompt.ids, prompt.parts)
                text = await offload.run(size, make)
                submission = _submit(client, options, prompt, salt, allowance.terms)
                stream = await clock.submitted(submission)
                readers.append(PromptReader(options, prompt, stream, text, offload))
        except BaseException:
            clock.close()
            await _abort(readers)
            raise
        return cls(options, readers, clock)

    @property
    def num_candidates(self) -> int:
        """Sequences that are made; see `best`."""
        return len(self._readers) * self._options.num_candidates

    @property
    def is_silent(self) -> bool:
        """Whether nothing is generated for the client to see before the end."""
        return self._options.is_search or self._options.is_scoring

    @property
    def events(self) -> list[list[tuple[EventKind, int]]]:
        """For each prompt what engines have reported of it; see `TokenStream`."""
        return [reader.events for reader in self._readers]

    async def close(self) -> None:
        """Abort the sequences that have not ended; completes even while being cancelled."""
        self._clock.close()
        await _abort(self._readers)

    def give_to(self, outlet: Outlet) -> None:
        """Have an outlet take what goes on, instead of yielding it, as far as it may.

        Not where equal candidates get copies, prompts are merged, or what comes is collected.
        """
        options = self._options
        is_one = len(self._readers) == 1 and self._readers[0].num_choices == options.num_candidates
        if is_one and not self.is_silent and options.stream_interval == 1:
            self._readers[0].give_to(_CountedOutlet(outlet, self._count))

    async def __aiter__(self) -> AsyncGenerator[ChoiceUpdate, None]:
        """Yield updates of all candidates as they come.

        The progress of a beam search comes with the index of its prompt's first candidate.

        Raises:
            EngineError: if the engine fails before the end.
            DeadlineExceeded: if the engine is late.
        """
        readers = [self._read(index) for index in range(len(self._readers))]
        merged = readers[0] if len(readers) == 1 else _merge(readers)
        source = self._clock.limited(merged, is_silent=self.is_silent)
        # a generator that is left half-way must be closed by hand
        async with aclosing(source), aclosing(self._collected(source)) as collected:
            async for update in collected:
                yield update

    def best(self, texts: Sequence[TextDelta]) -> list[TextDelta]:
        """Return for each prompt its `num_choices` likeliest candidates, likeliest first.

        Where as many candidates are made as returned, their order is kept; a beam search returns
        the best first by itself.

        Args:
            texts: the whole text of every candidate.
        """
        num_choices, num_candidates = self._options.num_choices, self._options.num_candidates
        if num_choices == num_candidates:
            return list(texts)
        kept: list[TextDelta] = []
        for start in range(0, len(texts), num_candidates):
            ranked = sorted(texts[start : start + num_candidates], key=_rank, reverse=True)
            kept += ranked[:num_choices]
        return kept

    def usage(self, index: int) -> Usage:
        """Tokens of one candidate so far."""
        number = index // self._options.num_candidates
        return Usage(
            prompt_tokens=self._readers[number].num_prompt_tokens,
            completion_tokens=self._num_sampled[index],
            cached_tokens=self._readers[number].num_cached,
        )

    def total_usage(self) -> Usage:
        """Tokens of all candidates so far; each prompt counts once."""
        return Usage(
            prompt_tokens=sum(reader.num_prompt_tokens for reader in self._readers),
            completion_tokens=sum(self._num_sampled),
            cached_tokens=sum(reader.num_cached for reader in self._readers),
            peak_blocks=sum(reader.peak_blocks for reader in self._readers),
        )

    def _count(self, index: int, num_tokens: int) -> None:
        self._clock.note_output()
        self._num_sampled[index] += num_tokens
        self.note(index, num_tokens, None)

    def _collected(
        self, source: AsyncGenerator[ChoiceUpdate, None]
    ) -> AsyncGenerator[ChoiceUpdate, None]:
        interval = self._options.stream_interval
        return source if interval == 1 else in_intervals(source, interval)

    async def _read(self, number: int) -> AsyncGenerator[ChoiceUpdate, None]:
        """Yield the updates of one prompt, with the indices of its candidates."""
        reader, num_candidates = self._readers[number], self._options.num_candidates
        # greedy candidates are equal: the engine computes one, and each gets its updates
        num_copies = num_candidates // reader.num_choices
        async with aclosing(aiter(reader)) as source:
            async for choice, update in source:
                start = number * num_candidates + choice * num_copies
                if isinstance(update, BeamProgress):
                    yield start, update
                    continue
                for index in range(start, start + num_copies):
                    self._num_sampled[index] += len(update.token_ids)
                    self.note(index, len(update.token_ids), update.finish_reason)
                    yield index, update


class _CountedOutlet:
    """An outlet whose tokens are counted first."""

    def __init__(self, outlet: Outlet, count: Callable[[int, int], None]) -> None:
        self.takes_text = outlet.takes_text
        self.may_take = outlet.may_take
        self._outlet = outlet
        self._count = count

    def take_text(self, index: int, text: str, num_tokens: int) -> None:
        self._count(index, num_tokens)
        self._outlet.take_text(index, text, num_tokens)

    def take(self, index: int, delta: TextDelta) -> None:
        self._count(index, len(delta.token_ids))
        self._outlet.take(index, delta)


async def _submit(
    client: EngineClient, options: GenerationOptions, prompt: Prompt, salt: bytes, terms: Terms
) -> TokenStream | None:
    if prompt.sampling is None:
        return None
    ids = prompt.ids[:-1] if options.is_scoring else prompt.ids
    try:
        session = session_key(salt, options.session_id)
        return await client.submit(ids, prompt.sampling, salt=salt, session=session, terms=terms)
    except PromptTooLong as error:
        # the engine does not know what the request called its prompt
        error.param = prompt.name
        raise


def _rank(text: TextDelta) -> tuple[bool, float]:
    """The mean log-probability, behind that of every text that did not end for want of a token."""
    return text.finish_reason != "error", text.logprob / max(1, len(text.token_ids))


async def _merge(
    readers: Sequence[AsyncGenerator[ChoiceUpdate, None]],
) -> AsyncGenerator[ChoiceUpdate, None]:
    """Yield what any of the readers yields, as soon as it does."""
    waiting = {asyncio.ensure_future(anext(reader, None)): reader for reader in readers}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                reader = waiting.pop(task)
                if (update := task.result()) is not None:
                    waiting[asyncio.ensure_future(anext(reader, None))] = reader
                    yield update
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
