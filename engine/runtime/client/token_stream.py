"""The ingress's end of one request."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

from engine.errors import ServeError
from engine.runtime.protocol import Delta
from engine.types import BEAM_CHOICE, PROMPT_CHOICE, FinishReason, float32, int32


class Aborter(Protocol):
    """Who can have the engine end what a stream tells of."""

    async def abort(self, stream: "RemoteTokenStream") -> None:
        """End the stream and its request."""
        ...

    async def abort_choice(self, stream: "RemoteTokenStream", choice: int) -> None:
        """End one choice of the request."""
        ...


class RemoteTokenStream:
    """One request's output, for one reader. Implements `engine.runtime.protocol.TokenStream`.

    Attributes:
        replica: tag of the engine replica that has the request; None before its verdict.
    """

    def __init__(
        self,
        request_id: int,
        num_choices: int,
        aborter: Aborter,
        replica: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.replica = replica
        self._aborter = aborter
        self._open = set(range(num_choices))
        self._news: asyncio.Queue[Delta | ServeError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        while self._open or not self._news.empty():
            news = await self._news.get()
            if isinstance(news, ServeError):
                raise news
            yield news

    async def abort(self) -> None:
        """See `TokenStream.abort`."""
        await self._aborter.abort(self)

    async def abort_choice(self, choice: int) -> None:
        """See `TokenStream.abort_choice`."""
        if choice in self._open:
            self._open.remove(choice)
            await self._aborter.abort_choice(self, choice)

    @property
    def has_ended(self) -> bool:
        """Whether every choice has its last news, read or not."""
        return not self._open

    def put(self, delta: Delta) -> None:
        """Queue news for the reader; those of a choice that has ended are dropped."""
        if delta.choice not in (PROMPT_CHOICE, BEAM_CHOICE) and delta.choice not in self._open:
            return
        if delta.finish_reason is not FinishReason.NONE:
            self._open.discard(delta.choice)
        self._news.put_nowait(delta)

    def end(self) -> None:
        """End the choices that go on as aborted."""
        for choice in sorted(self._open):
            self.put(
                Delta(
                    choice=choice,
                    tokens=int32(),
                    logprobs=float32(),
                    finish_reason=FinishReason.ABORT,
                )
            )

    def fail(self, error: ServeError) -> None:
        """End the choices that go on, if any, by an error that the reader raises."""
        if self._open:
            self._open.clear()
            self._news.put_nowait(error)
