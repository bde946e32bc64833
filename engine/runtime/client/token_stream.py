"""The ingress's end of one request."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from engine.errors import ServeError
from engine.runtime.protocol import Delta
from engine.types import ALL_CHOICES, BEAM_CHOICE, PROMPT_CHOICE, FinishReason, float32, int32


class RemoteTokenStream:
    """One request's output, for one reader. Implements `engine.runtime.protocol.TokenStream`.

    Attributes:
        replica: tag of the engine replica that has the request; None before its verdict.
    """

    def __init__(
        self,
        request_id: int,
        num_choices: int,
        send_abort: Callable[["RemoteTokenStream", int], Awaitable[None]],
        replica: str | None = None,
    ) -> None:
        """Args: send_abort: has the engine end this request (ALL_CHOICES) or one choice of it."""
        self.request_id = request_id
        self.replica = replica
        self._send_abort = send_abort
        self._open = set(range(num_choices))
        self._unread: asyncio.Queue[Delta | ServeError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        while self._open or not self._unread.empty():
            item = await self._unread.get()
            if isinstance(item, ServeError):
                raise item
            yield item

    async def abort(self) -> None:
        """See `TokenStream.abort`."""
        if self.has_ended:
            return
        for choice in sorted(self._open):
            self.put(
                Delta(
                    choice=choice,
                    tokens=int32(),
                    logprobs=float32(),
                    finish_reason=FinishReason.ABORT,
                )
            )
        await self._send_abort(self, ALL_CHOICES)

    async def abort_choice(self, choice: int) -> None:
        """See `TokenStream.abort_choice`."""
        if choice in self._open:
            self._open.remove(choice)
            await self._send_abort(self, choice)

    @property
    def has_ended(self) -> bool:
        """Whether every choice has its last delta, read or not."""
        return not self._open

    def put(self, delta: Delta) -> None:
        """Queue a delta for the reader; that of a choice that has ended is dropped."""
        if delta.choice not in (PROMPT_CHOICE, BEAM_CHOICE) and delta.choice not in self._open:
            return
        if delta.finish_reason is not FinishReason.NONE:
            self._open.discard(delta.choice)
        self._unread.put_nowait(delta)

    def fail(self, error: ServeError) -> None:
        """End the choices that go on, if any, by an error that the reader raises."""
        if self._open:
            self._open.clear()
            self._unread.put_nowait(error)
