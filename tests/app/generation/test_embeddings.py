"""Texts of a request are in the engine a few at a time, and none stays there."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.generation import embeddings
from app.generation.allowance import Allowance
from app.generation.embeddings import embed
from app.protocol.errors import DeadlineExceeded
from engine.errors import EngineError, PromptTooLong
from engine.runtime.protocol import Delta, TakeDelta, TokenStream
from engine.types import (
    ORDINARY_TERMS,
    EventKind,
    FinishReason,
    IntColumn,
    SamplingParams,
    Terms,
    float32,
    int32,
)
from tests.fakes.scripted_engine import FakeEngineClient, Script

_PROMPTS = [(f"input[{index}]", int32([index, 7])) for index in range(5)]


class _Pooling(FakeEngineClient):
    """The vector of a prompt is its first token; `held` lets none end."""

    def __init__(self) -> None:
        super().__init__([Script()])
        self.held = asyncio.Event()
        self.most_open = 0
        self.too_long = -1

    async def submit(
        self,
        prompt: IntColumn,
        sampling: SamplingParams,
        *,
        salt: bytes = b"",
        session: bytes = b"",
        terms: Terms = ORDINARY_TERMS,
    ) -> TokenStream:
        if prompt[0] == self.too_long:
            raise PromptTooLong("long", param="prompt", limit=1, got=2)
        await super().submit(prompt, sampling, salt=salt, terms=terms)
        return _Vector(self, len(self.prompts) - 1, prompt)


class _Vector:
    def __init__(self, client: _Pooling, number: int, prompt: IntColumn) -> None:
        self.request_id = number
        self.events: list[tuple[EventKind, int]] = []
        self._client, self._prompt = client, prompt

    async def __aiter__(self) -> AsyncIterator[Delta]:
        client = self._client
        client.most_open = max(client.most_open, len(client.prompts) - len(client.aborted))
        await client.held.wait()
        yield Delta(
            choice=0,
            tokens=int32(),
            logprobs=float32(),
            finish_reason=FinishReason.LENGTH,
            num_cached=1,
            pooled=float32([self._prompt[0], 0.5]),
        )

    def offer_to(self, take: TakeDelta) -> None:
        pass

    async def abort(self) -> None:
        self._client.aborted.append(self.request_id)

    async def abort_choice(self, choice: int) -> None:
        raise AssertionError


async def test_vectors_are_in_the_order_of_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "_MOST_OPEN", 2)
    engine = _Pooling()
    engine.held.set()
    found = await embed(engine, _PROMPTS, "mean", b"salt", Allowance())
    assert [vector.tolist() for vector in found.vectors] == [[i, 0.5] for i in range(5)]
    assert (found.usage.prompt_tokens, found.usage.cached_tokens) == (10, 5)
    assert {sampling.pooling for sampling in engine.samplings} == {"mean"}
    assert set(engine.salts) == {b"salt"}
    assert engine.most_open == 2


async def test_a_late_request_ends_and_leaves_the_engine() -> None:
    engine = _Pooling()
    with pytest.raises(DeadlineExceeded):
        await embed(engine, _PROMPTS, "last", b"", Allowance(whole_s=0.01))
    assert sorted(engine.aborted) == list(range(len(engine.prompts)))


async def test_a_refused_text_is_named_and_the_others_leave_the_engine() -> None:
    engine = _Pooling()
    engine.too_long = 3
    with pytest.raises(PromptTooLong) as caught:
        await embed(engine, _PROMPTS, "last", b"", Allowance())
    assert caught.value.param == "input[3]"
    assert sorted(engine.aborted) == list(range(len(engine.prompts)))


async def test_an_end_without_a_vector_is_an_error() -> None:
    with pytest.raises(EngineError):
        await embed(FakeEngineClient([Script([5])]), _PROMPTS[:1], "last", b"", Allowance())
