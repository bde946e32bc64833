"""An engine that says what a test tells it to."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from engine.runtime.protocol import Delta, TokenStream
from engine.types import FinishReason, IntColumn, SamplingParams, float32, int32


@dataclass
class Script:
    """What the engine does with one request.

    Attributes:
        tokens: what the model would say; cut at the request's `max_tokens`.
        finish: why it ends when the tokens are used up before `max_tokens`.
        group: tokens per delta.
        logprobs: of each token; alternatives are the ids after it.
        error_at: raise `error` instead of the delta that starts at this token.
        pause_at: wait for `resume` before the delta that starts at this token.
    """

    tokens: Sequence[int]
    finish: FinishReason = FinishReason.STOP
    group: int = 1
    error: Exception | None = None
    error_at: int = 0
    pause_at: int | None = None


@dataclass
class FakeEngineClient:
    """Implements `EngineClient`: one script per request, the last one for all that follow."""

    scripts: list[Script]
    refusal: Exception | None = None
    ready: bool = True
    prompts: list[list[int]] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    abort_seen: asyncio.Event = field(default_factory=asyncio.Event)
    abort_gate: asyncio.Event | None = None

    async def submit(self, prompt: IntColumn, sampling: SamplingParams) -> TokenStream:
        if self.refusal is not None:
            raise self.refusal
        number = len(self.prompts)
        self.prompts.append(prompt.tolist())
        self.samplings.append(sampling)
        script = self.scripts[min(number, len(self.scripts) - 1)]
        return FakeStream(self, number, script, sampling)

    async def is_ready(self) -> bool:
        return self.ready


class FakeStream:
    def __init__(
        self, client: FakeEngineClient, number: int, script: Script, sampling: SamplingParams
    ) -> None:
        self.request_id = number
        self._client = client
        self._script = script
        self._sampling = sampling

    async def __aiter__(self) -> AsyncIterator[Delta]:
        script = self._script
        tokens = list(script.tokens)[: self._sampling.max_tokens]
        ran_out = len(script.tokens) > len(tokens) or len(tokens) == self._sampling.max_tokens
        last = FinishReason.LENGTH if ran_out else script.finish
        for start in range(0, len(tokens), script.group):
            if script.pause_at == start:
                self._client.paused.set()
                await self._client.resume.wait()
            if script.error is not None and script.error_at <= start:
                raise script.error
            end = start + script.group
            yield self._delta(tokens[start:end], last if end >= len(tokens) else FinishReason.NONE)

    async def abort(self) -> None:
        if self._client.abort_gate is not None:
            await self._client.abort_gate.wait()
        self._client.aborted.append(self.request_id)
        self._client.abort_seen.set()

    def _delta(self, tokens: list[int], finish: FinishReason) -> Delta:
        count = self._sampling.num_logprobs
        top = range(count or 0)
        return Delta(
            choice=0,
            tokens=int32(tokens),
            logprobs=float32([math.nan if count is None else -0.5] * len(tokens)),
            top_tokens=tuple(int32([token + i for i in top]) for token in tokens) if count else (),
            top_logprobs=tuple(float32([-0.5 - i for i in top]) for _ in tokens) if count else (),
            finish_reason=finish,
        )
