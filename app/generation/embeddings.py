"""Runs the texts of one request on the engine and gathers their vectors."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.generation.allowance import Allowance
from app.generation.cancellation import finish
from app.protocol.answer import Usage
from app.protocol.errors import DeadlineExceeded
from app.text.choice_text import check_alive
from engine.errors import EngineError, PromptTooLong
from engine.runtime.protocol import EngineClient, TokenStream
from engine.types import FloatColumn, IntColumn, Pooling, SamplingParams, float32

# of one request in the engine, so that it does not fill the queue with its texts
_MOST_OPEN = 32


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What came of the texts.

    Attributes:
        vectors: float32, in the order of the texts.
    """

    vectors: list[FloatColumn]
    usage: Usage


async def embed(
    client: EngineClient,
    prompts: Sequence[tuple[str, IntColumn]],
    pooling: Pooling,
    salt: bytes,
    allowance: Allowance,
) -> Embeddings:
    """Compute the vector of each prompt; whatever happens, none is left in the engine.

    Args:
        prompts: token ids, each with its name in the request.
        salt: of the tenant, see `engine.types.Request`.

    Raises:
        PromptTooLong: naming the field of the request.
        Overloaded: if the engine's queue is full, or it would wait there for too long.
        DeadlineExceeded: if it takes longer than allowed.
        EngineError: if the engine fails.
    """
    batch = _Batch(client, prompts, pooling, salt, allowance)
    tasks = [asyncio.ensure_future(batch.work()) for _ in range(min(len(prompts), _MOST_OPEN))]
    limit_s = None if allowance.whole_s == math.inf else allowance.whole_s
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*tasks)
    except TimeoutError:
        raise DeadlineExceeded(
            f"the answer is late and was ended after {allowance.whole_s:.0f} s"
        ) from None
    finally:
        for task in tasks:
            task.cancel()
        await finish(asyncio.gather(*tasks, return_exceptions=True))
    return Embeddings(batch.vectors, batch.usage())


class _Batch:
    """All prompts of a request; several tasks take them in turn."""

    def __init__(
        self,
        client: EngineClient,
        prompts: Sequence[tuple[str, IntColumn]],
        pooling: Pooling,
        salt: bytes,
        allowance: Allowance,
    ) -> None:
        self.vectors: list[FloatColumn] = [float32()] * len(prompts)
        self._client = client
        self._sampling = SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, pooling=pooling
        )
        self._salt = salt
        self._terms = allowance.terms
        self._num_tokens = sum(len(ids) for _, ids in prompts)
        self._num_cached = 0
        self._waiting = iter(enumerate(prompts))

    async def work(self) -> None:
        """Compute one vector after the other until there is nothing left to do."""
        for index, (name, ids) in self._waiting:
            stream = await self._submit(name, ids)
            try:
                self.vectors[index] = await self._read(stream)
            finally:
                await finish(asyncio.ensure_future(stream.abort()))

    def usage(self) -> Usage:
        """Tokens of all prompts."""
        return Usage(
            prompt_tokens=self._num_tokens, completion_tokens=0, cached_tokens=self._num_cached
        )

    async def _submit(self, name: str, ids: IntColumn) -> TokenStream:
        try:
            return await self._client.submit(
                ids, self._sampling, salt=self._salt, terms=self._terms
            )
        except PromptTooLong as error:
            # the engine does not know what the request called it
            error.param = name
            raise

    async def _read(self, stream: TokenStream) -> FloatColumn:
        vector = float32()
        async for delta in stream:
            check_alive(delta)
            self._num_cached += delta.num_cached
            vector = delta.pooled or vector
        if not vector:
            raise EngineError("the engine ended a text without its vector")
        return vector
