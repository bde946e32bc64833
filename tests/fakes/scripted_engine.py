"""An engine whose output the test writes down beforehand."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.errors import Overloaded
from engine.runtime.messages import PrefixInfo, tokens_digest
from engine.runtime.protocol import BeamStep, Delta, TakeDelta, TokenStream
from engine.types import (
    BEAM_CHOICE,
    ORDINARY_TERMS,
    PROMPT_CHOICE,
    EventKind,
    FinishReason,
    IntColumn,
    Pin,
    SamplingParams,
    Terms,
    float32,
    int32,
)

PROMPT_LOGPROB = -0.25


@dataclass(frozen=True)
class Hypothesis:
    """What a beam search found; `logprobs` are those of its tokens."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish: FinishReason = FinishReason.STOP


@dataclass
class Script:
    """What the engine does with one request.

    Attributes:
        tokens: what the model generates; cut at the request's `max_tokens`.
        draw: what it generates instead with a seed, to which a choice adds its index.
        logprob_of: log-probability of a sampled token; its alternatives are the ids after it.
        hypotheses: what a beam search finds, best first; sent at the end.
        beam_steps: what it reports before that.
        finish: why it ends when the tokens are used up before `max_tokens`.
        group: tokens per delta; choices take turns.
        error_at: raise `error` instead of the deltas that start at this token.
        num_cached: tokens of the prompt that were in the prefix cache.
        vector: what it computes of a text, in place of tokens.
        pause_at: wait for `resume` before the deltas that start at this token.
    """

    tokens: Sequence[int] = ()
    draw: Callable[[int], Sequence[int]] | None = None
    logprob_of: Callable[[int], float] = lambda token: -0.5
    hypotheses: Sequence[Hypothesis] = ()
    beam_steps: Sequence[BeamStep] = ()
    finish: FinishReason = FinishReason.STOP
    group: int = 1
    error: Exception | None = None
    error_at: int = 0
    pause_at: int | None = None
    num_cached: int = 0
    vector: Sequence[float] = ()


@dataclass
class FakeEngineClient:
    """Implements `EngineClient`: one script per request, the last one for all that follow.

    Attributes:
        refusal: of every request after the first `num_accepted`.
        num_taken: deltas that were taken without waking their reader.
    """

    scripts: list[Script]
    refusal: Exception | None = None
    num_accepted: int = 0
    num_taken: int = 0
    is_full: bool = False
    ready: bool = True
    served_len: int | None = None
    prompts: list[list[int]] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    salts: list[bytes] = field(default_factory=list)
    sessions: list[bytes] = field(default_factory=list)
    terms: list[Terms] = field(default_factory=list)
    pin_reason: FinishReason = FinishReason.LENGTH
    prefixes_of: dict[bytes, dict[str, PrefixInfo]] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)
    aborted_choices: list[tuple[int, int]] = field(default_factory=list)
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    abort_seen: asyncio.Event = field(default_factory=asyncio.Event)
    abort_gate: asyncio.Event | None = None

    def check_room(self, account: bytes) -> None:
        if self.is_full:
            raise Overloaded("full", retry_after_s=7.0)

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> TokenStream:
        if self.refusal is not None and len(self.prompts) >= self.num_accepted:
            raise self.refusal
        number = len(self.prompts)
        self.prompts.append(prompt.tolist())
        self.samplings.append(sampling)
        self.salts.append(salt)
        self.sessions.append(session)
        self.terms.append(terms)
        script = self.scripts[min(number, len(self.scripts) - 1)]
        return FakeStream(self, number, script, sampling)

    async def pin_prefix(self, prompt: IntColumn, pin: Pin, *, salt: bytes = b"") -> FinishReason:
        self.prefixes_of.setdefault(salt, {})[pin.name] = PrefixInfo(
            name=pin.name,
            num_tokens=len(prompt),
            num_blocks=1,
            digest=tokens_digest(prompt),
            is_warm=True,
            ttl_s=pin.ttl_s,
        )
        async for _ in await self.submit(prompt, SamplingParams(max_tokens=1), salt=salt):
            pass
        return self.pin_reason

    async def release_prefix(self, name: str, *, salt: bytes = b"") -> None:
        del self.prefixes_of[salt][name]

    async def prefixes(self, *, salt: bytes = b"") -> list[PrefixInfo]:
        return list(self.prefixes_of.get(salt, {}).values())

    async def is_ready(self) -> bool:
        return self.ready

    async def max_model_len(self) -> int | None:
        return self.served_len


class FakeStream:
    def __init__(
        self, client: FakeEngineClient, number: int, script: Script, sampling: SamplingParams
    ) -> None:
        self.request_id = number
        self.events: list[tuple[EventKind, int]] = []
        self._client = client
        self._script = script
        self._sampling = sampling
        self._take: TakeDelta | None = None

    def offer_to(self, take: TakeDelta) -> None:
        self._take = take

    async def __aiter__(self) -> AsyncIterator[Delta]:
        turns = self._found() if self._sampling.beam_width else self._turns()
        prompt = [(0, delta) for delta in self._prompt_deltas()]
        # the last scores of the prompt may come behind the first token, but not behind the end
        late = min(1, len(turns) - 1)
        deltas = prompt[:-1] + turns[:late] + prompt[-1:] + turns[late:]
        for index, (start, delta) in enumerate(deltas):
            await self._wait(start)
            goes_on = delta.finish_reason is FinishReason.NONE
            if index and goes_on and self._take is not None and self._take(delta):
                self._client.num_taken += 1
                continue
            yield delta if index else replace(delta, num_cached=self._script.num_cached)

    async def abort(self) -> None:
        if self._client.abort_gate is not None:
            await self._client.abort_gate.wait()
        self._client.aborted.append(self.request_id)
        self._client.abort_seen.set()

    async def abort_choice(self, choice: int) -> None:
        self._client.aborted_choices.append((self.request_id, choice))

    async def _wait(self, start: int) -> None:
        script = self._script
        if script.pause_at == start:
            self._client.paused.set()
            await self._client.resume.wait()
        if script.error is not None and script.error_at <= start:
            raise script.error

    def _turns(self) -> list[tuple[int, Delta]]:
        if self._script.vector:
            ended = _delta(0, [], [], None, FinishReason.LENGTH)
            return [(0, replace(ended, pooled=float32(list(self._script.vector))))]
        lines = [self._line(choice) for choice in range(self._sampling.n)]
        longest = max(len(tokens) for tokens, _ in lines)
        return [
            (start, self._delta(choice, tokens, start, last))
            for start in range(0, longest, self._script.group)
            for choice, (tokens, last) in enumerate(lines)
            if start < len(tokens)
        ]

    def _line(self, choice: int) -> tuple[list[int], FinishReason]:
        """The tokens of a choice and why it ends."""
        script, sampling = self._script, self._sampling
        said = script.tokens if script.draw is None else script.draw(sampling.seed + choice)
        if sampling.allowed_token_ids:
            said = [sampling.allowed_token_ids[0]] * max(1, len(said))
        tokens = list(said)[: sampling.max_tokens]
        ran_out = len(said) > len(tokens) or len(tokens) == sampling.max_tokens
        return tokens, FinishReason.LENGTH if ran_out else script.finish

    def _delta(self, choice: int, tokens: list[int], start: int, last: FinishReason) -> Delta:
        end = start + self._script.group
        part = tokens[start:end]
        count = self._sampling.num_logprobs
        logprobs = [math.nan if count is None else self._script.logprob_of(t) for t in part]
        return _delta(
            choice, part, logprobs, count, last if end >= len(tokens) else FinishReason.NONE
        )

    def _prompt_deltas(self) -> list[Delta]:
        count = self._sampling.prompt_logprobs
        if count is None:
            return []
        ids = self._client.prompts[self.request_id]
        parts = []
        for start in range(1, len(ids), self._script.group):
            part = ids[start : start + self._script.group]
            logprobs = [PROMPT_LOGPROB * (start + i) for i in range(len(part))]
            parts.append(_delta(PROMPT_CHOICE, part, logprobs, count, FinishReason.NONE))
        return parts

    def _found(self) -> list[tuple[int, Delta]]:
        found = list(self._script.hypotheses[: self._sampling.n])
        found += [Hypothesis((), ())] * (self._sampling.n - len(found))
        count = self._sampling.num_logprobs
        steps = self._script.beam_steps if self._sampling.report_beams else ()
        return [
            (0, replace(_delta(BEAM_CHOICE, [], [], None, FinishReason.NONE), beam_steps=(step,)))
            for step in steps
        ] + [
            (0, _delta(rank, list(best.tokens), list(best.logprobs), count, best.finish))
            for rank, best in enumerate(found)
        ]


def _delta(
    choice: int,
    tokens: list[int],
    logprobs: list[float],
    num_top: int | None,
    finish: FinishReason,
) -> Delta:
    top = range(num_top or 0)
    tops = [
        (int32([t + i for i in top]), float32([p - i for i in top]))
        for t, p in zip(tokens, logprobs, strict=True)
    ]
    return Delta(
        choice=choice,
        tokens=int32(tokens),
        logprobs=float32(logprobs),
        top_tokens=tuple(ids for ids, _ in tops) if top else (),
        top_logprobs=tuple(values for _, values in tops) if top else (),
        finish_reason=finish,
    )
