"""Turns the engine's output for one prompt into the texts of its choices."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

from app.generation.cancellation import finish
from app.generation.outlet import Outlet
from app.generation.request.prepare import GenerationOptions, Prompt
from app.generation.request.rules import ruled_out
from app.text.beam_text import BeamProgress, BeamTexts
from app.text.choice_text import ChoiceText, TextDelta, check_alive, join
from app.text.offload import MAX_INLINE, Offload
from app.text.prompt_text import PromptText
from engine.errors import EngineError
from engine.runtime.protocol import Delta, TokenStream
from engine.types import BEAM_CHOICE, PROMPT_CHOICE, FinishReason

# least time between two reports of a beam search's progress, each of which replaces the last one
PROGRESS_PERIOD_S = 0.1

_BROKEN_OFF = "the engine ended a stream before its end"


class PromptReader:
    """Reads one stream of the engine to its end, or to the end of the last choice's text.

    A stop string ends a choice here, where text is known. The engine, which knows only tokens,
    is then asked to abort the choice.

    Args:
        stream: None where nothing was asked of the engine.
        text: of the prompt.
        offload: for what the answer repeats of a long prompt.

    Attributes:
        num_choices: sequences that the engine makes for this prompt.
        events: see `TokenStream`.
        num_prompt_tokens: of the prompt.
        num_cached: prompt tokens found in the engine's prefix cache, as far as it has reported.
        peak_blocks: most blocks of the KV cache that the engine has reported to hold for it.
    """

    def __init__(
        self,
        options: GenerationOptions,
        prompt: Prompt,
        stream: TokenStream | None,
        text: PromptText,
        offload: Offload,
    ) -> None:
        self.num_prompt_tokens = len(prompt.ids)
        self.num_cached = 0
        self.peak_blocks = 0
        self.events = stream.events if stream is not None else []
        self._offload = offload
        self._stream = stream
        self._is_scoring = options.is_scoring
        self._prompt = text
        self.num_choices = 1 if prompt.sampling is None else prompt.sampling.n
        self._open = {
            choice: ChoiceText(text.vocabulary, options.text, start=len(self._prompt.text))
            for choice in range(self.num_choices)
        }
        self._unopened = set(self._open)
        self._late_rule = options.text.late_rule
        # whether a choice has ended otherwise than for want of a token
        self._has_answer = False
        self._beams = None
        if prompt.sampling is not None and prompt.sampling.report_beams:
            self._beams = BeamTexts(
                text.vocabulary,
                options.text,
                num_shown=self.num_choices,
                length_penalty=prompt.sampling.length_penalty,
            )
        self._next_progress_s = 0.0
        # deltas of choices that came before the prompt's scores were complete
        self._held: list[Delta] = []
        # what has become of a delta that is still to be read, by choice
        self._pushed: dict[int, TextDelta] = {}
        # choices that the engine still computes, and those among them that it should abort
        self._running = set(self._open)
        self._cut: list[int] = []

    async def abort(self) -> None:
        """Abort the sequences that have not ended; completes even while being cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            # a dead engine holds nothing that could be freed
            with suppress(EngineError):
                await finish(asyncio.ensure_future(stream.abort()))

    def give_to(self, outlet: Outlet) -> None:
        """Have text that goes on taken as it comes, instead of yielding it, while it may be.

        What begins a choice and what ends one is yielded all the same.
        """

        def take(delta: Delta) -> bool:
            choice = self._open.get(delta.choice)
            is_first = delta.choice in self._unopened or bool(delta.num_cached)
            if choice is None or is_first or not outlet.may_take():
                return False
            if outlet.takes_text and choice.is_plain:
                outlet.take_text(delta.choice, *choice.push_plain(delta))
                return True
            update = choice.push(delta)
            if update.finish_reason is None and update.size <= MAX_INLINE:
                outlet.take(delta.choice, update)
                return True
            self._pushed[delta.choice] = update
            return False

        if self._stream is not None:
            self._stream.offer_to(take)

    async def __aiter__(self) -> AsyncGenerator[tuple[int, TextDelta | BeamProgress], None]:
        """Yield (choice, update) as they come; the progress of a beam search comes with choice 0.

        Raises:
            InvalidRequest: if the rules left no choice a token at some place.
            EngineError: if the engine fails before the end.
        """
        if self._is_scoring:
            yield 0, await self._score()
            return
        assert self._stream is not None
        async for delta in self._stream:
            check_alive(delta)
            self.num_cached += delta.num_cached
            self.peak_blocks = max(self.peak_blocks, delta.peak_blocks)
            for progress in self._follow(delta):
                yield 0, progress
            due = self._due(delta)
            if due and self._unopened:
                # it is kept, so that what follows finds it made
                await self._offload.run(self._prompt.size, self._prompt.opening)
            for update in self._take(due):
                if not self._open:
                    await self._end()
                await self._abort_cut()
                yield update
            if not self._open:
                return
        raise EngineError(_BROKEN_OFF)

    def _follow(self, delta: Delta) -> Iterator[BeamProgress]:
        """Follow the beams of a search; yield their progress, but not too often."""
        if delta.choice != BEAM_CHOICE:
            return
        assert self._beams is not None
        self._beams.push(delta.beam_steps)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_progress_s:
            self._next_progress_s = now_s + PROGRESS_PERIOD_S
            yield self._beams.best()

    def _due(self, delta: Delta) -> list[Delta]:
        """Return the deltas of choices that may become text now.

        They wait until all scores of the prompt are there: a choice begins with the prompt.
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
        """Turn deltas into text, and note which choices have ended, here or in the engine."""
        for delta in deltas:
            if delta.finish_reason is not FinishReason.NONE:
                self._running.discard(delta.choice)
            choice = self._open.get(delta.choice)
            if choice is None:
                # a stop string has ended it, and the engine has not aborted it yet
                continue
            update = self._pushed.pop(delta.choice, None) or choice.push(delta)
            if update.finish_reason is not None:
                del self._open[delta.choice]
                self._has_answer |= update.finish_reason != "error"
                if not self._open and not self._has_answer:
                    raise ruled_out(self._late_rule)
                if delta.choice in self._running:
                    self._cut.append(delta.choice)
            if delta.choice in self._unopened:
                self._unopened.remove(delta.choice)
                update = join([self._prompt.opening(), update])
            yield delta.choice, update

    async def _end(self) -> None:
        """Let go of the stream after the last choice; abort what the engine still computes."""
        if self._running:
            await self.abort()
        self._stream = None

    async def _abort_cut(self) -> None:
        """Abort the choices that a stop string has ended while others go on."""
        cut, self._cut = self._cut, []
        for choice in cut:
            self._running.discard(choice)
            if self._stream is not None:
                # iterating over the stream of a dead engine raises by itself
                with suppress(EngineError):
                    await self._stream.abort_choice(choice)

    async def _score(self) -> TextDelta:
        """Read scores only; the one token that the engine samples is the prompt's last."""
        sampled: list[Delta] = []
        if self._stream is not None:
            async for delta in self._stream:
                check_alive(delta)
                if delta.choice == PROMPT_CHOICE:
                    self._prompt.push(delta)
                else:
                    sampled.append(delta)
        self._stream = None
        for delta in sampled:
            self._prompt.push(delta)
        if self._prompt.num_missing:
            raise EngineError(_BROKEN_OFF)
        await self._offload.run(self._prompt.size, self._prompt.opening)
        return join([self._prompt.opening(), TextDelta(text="", finish_reason="length")])
