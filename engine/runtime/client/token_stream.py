"""The ingress's end of one request."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Set
from dataclasses import replace

from engine.errors import EngineError, ServeError
from engine.runtime.client.journal import Journal
from engine.runtime.client.retries import Retries
from engine.runtime.client.unread_output import UnreadOutput
from engine.runtime.protocol import Delta, TakeDelta
from engine.types import (
    ALL_CHOICES,
    EventKind,
    FinishReason,
    Request,
    float32,
    int32,
)

logger = logging.getLogger(__name__)

# output of one request that may wait for its reader; more is borne for a moment, since that of a
# long prompt comes at once
MAX_UNREAD_BYTES = 256 << 10
UNREAD_S = 2.0


class RemoteTokenStream:
    """One request's output, for one reader. Implements `engine.runtime.protocol.TokenStream`.

    `OpenRequests` owns the attributes but the first.

    Attributes:
        request_id: of the first submission; it names the request for its whole life.
        submission_id: id that the engine knows it by, another one after each loss of an engine.
        replica: tag of the engine replica that has answered the latest submission; None before.
        is_placed: whether that replica has accepted it, and neither ended nor lost it.
        events: see `TokenStream`.
        retries: None for a request that fails when its engine is lost.
    """

    def __init__(
        self,
        request_id: int,
        num_choices: int,
        send_abort: Callable[["RemoteTokenStream", int], Awaitable[None]],
        *,
        journal: Journal | None = None,
        retries: Retries | None = None,
    ) -> None:
        """Begin without output.

        Args:
            send_abort: has the engine end this request (ALL_CHOICES) or one choice of it.
            journal, retries: of a request that goes on elsewhere when its engine is lost.
        """
        self.request_id = request_id
        self.events: list[tuple[EventKind, int]] = []
        self.submission_id = request_id
        self.replica: str | None = None
        self.is_placed = False
        self.retries = retries
        self._journal = journal
        self._send_abort = send_abort
        self._open = set(range(num_choices))
        self._unread = UnreadOutput()
        self._take: TakeDelta | None = None
        # since when there is too much of it
        self._full_s: float | None = None

    async def __aiter__(self) -> AsyncGenerator[Delta, None]:
        while self._open or self._unread:
            delta = await self._unread.get()
            if self._unread.num_bytes <= MAX_UNREAD_BYTES:
                self._full_s = None
            yield delta

    def offer_to(self, take: TakeDelta) -> None:
        """See `TokenStream.offer_to`."""
        self._take = take

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
            if self._journal is not None:
                self._journal.end(choice, FinishReason.ABORT)
            await self._send_abort(self, choice)

    @property
    def has_ended(self) -> bool:
        """Whether every choice has its last delta, read or not."""
        return not self._open

    @property
    def open_choices(self) -> Set[int]:
        """Choices that go on."""
        return self._open

    @property
    def is_resumed(self) -> bool:
        """Whether an engine that had accepted it is lost."""
        return self.retries is not None and self.retries.num_lost > 0

    def put(self, delta: Delta) -> None:
        """Queue a delta for the reader; that of a choice that has ended is dropped."""
        if delta.choice >= 0 and delta.choice not in self._open:
            return
        if self._journal is not None:
            self._journal.note(delta)
        if delta.finish_reason is not FinishReason.NONE:
            self._open.discard(delta.choice)
        elif self._is_taken(delta):
            return
        self._unread.put(delta)
        if self._unread.num_bytes > MAX_UNREAD_BYTES:
            self._note_full()

    def put_lost(self, delta: Delta) -> None:
        """Queue the tokens of a delta whose end is only that of its engine, if there are any."""
        if delta.tokens:
            self.put(replace(delta, finish_reason=FinishReason.NONE))

    def fail(self, error: ServeError) -> None:
        """End the choices that go on, if any, by an error that the reader raises."""
        if self._open:
            self._open.clear()
            self._unread.fail(error)

    @property
    def is_unread(self) -> bool:
        """Whether its reader is too slow to be waited for; it is to be ended."""
        return self._full_s is not None and _now_s() - self._full_s > UNREAD_S

    def _is_taken(self, delta: Delta) -> bool:
        """Offer a delta, if the reader is done with all that came before."""
        if self._take is None or not self._unread.is_waited_for:
            return False
        try:
            return self._take(delta)
        except Exception as error:  # the other streams of the message go on
            logger.exception("stream_failed request_id=%d", self.request_id)
            self.fail(EngineError(f"output of request {self.request_id} was lost: {error}"))
            return True

    def _note_full(self) -> None:
        if self._full_s is None:
            self._full_s = _now_s()

    def request_now(self, now_s: float) -> Request:
        """What an engine needs to go on with it, with `submission_id`; only with a journal.

        Args:
            now_s: seconds on the clock of its journal.
        """
        assert self._journal is not None
        assert self.retries is not None
        # output may come before a verdict that is lost
        if not self.is_resumed and not self._journal.has_begun:
            return self._journal.new(self.submission_id)
        return self._journal.resumed(
            self.submission_id, now_s, solo_tokens=self.retries.solo_tokens
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
