"""What one request may take of the engine and of time: the server's limits, or less by its wish."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from app.generation.watchdog import Watchdog
from app.protocol.api_settings import ApiSettings
from app.protocol.errors import DeadlineExceeded, UnsupportedParameter
from engine.types import ORDINARY_TERMS, Terms

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The terms of a request, and seconds that its answer may take.

    Attributes:
        terms: on which it waits for the engine.
        first_token_s: until its first output.
        gap_s: between two outputs.
        whole_s: for all of it, from `clock` on.
    """

    terms: Terms = ORDINARY_TERMS
    first_token_s: float = math.inf
    gap_s: float = math.inf
    whole_s: float = math.inf

    def clock(self) -> "AnswerClock":
        """Begin to count."""
        return AnswerClock(self)


class Limited(Protocol):
    """A request that may ask for less than the server allows."""

    @property
    def priority(self) -> int: ...

    @property
    def timeout_s(self) -> float | None: ...

    @property
    def queue_timeout_s(self) -> float | None: ...


def allowance_of(request: Limited, settings: ApiSettings, key_sha256: bytes) -> Allowance:
    """Return what a request may take.

    Args:
        key_sha256: digest of the caller's key; empty where none is needed.

    Raises:
        UnsupportedParameter: if it has a priority where those have no effect.
    """
    if request.priority and not settings.has_priorities:
        raise UnsupportedParameter(
            "requests have no priorities here: the server's queue_policy is not priority",
            param="priority",
        )
    deadlines, limits = settings.deadlines, settings.limits_of(key_sha256)
    whole_s = min(deadlines.whole_s, request.timeout_s or math.inf)
    return Allowance(
        terms=Terms(
            account=key_sha256,
            weight=limits.weight,
            queue_share=limits.queue_share,
            priority=request.priority,
            max_wait_s=min(deadlines.queue_s, request.queue_timeout_s or math.inf, whole_s),
        ),
        first_token_s=deadlines.first_token_s,
        gap_s=deadlines.gap_s,
        whole_s=whole_s,
    )


class AnswerClock:
    """Ends an answer that is late."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()
        self._watchdog = Watchdog()

    async def submitted(self, work: Awaitable[ResultT]) -> ResultT:
        """Await what comes before the first output.

        Raises:
            DeadlineExceeded: if it takes too long.
        """
        first_s = min(self._allowance.first_token_s, self._allowance.whole_s)
        return await self._wait(work, self._start_s + first_s)

    async def limited(
        self, updates: AsyncGenerator[ResultT, None], *, is_silent: bool
    ) -> AsyncGenerator[ResultT, None]:
        """Yield updates as they come.

        Args:
            is_silent: whether there is nothing to come before the end.

        Raises:
            DeadlineExceeded: if the first one, the next one or the last one does not come in time.
        """
        end_s = self._start_s + self._allowance.whole_s
        gap_s = math.inf if is_silent else self._allowance.gap_s
        next_s = math.inf if is_silent else self._start_s + self._allowance.first_token_s
        async with aclosing(updates):
            try:
                while True:
                    try:
                        update = await self._wait(anext(updates), min(next_s, end_s))
                    except StopAsyncIteration:
                        return
                    yield update
                    # what the reader took for this one is not the engine's time
                    next_s = self._loop.time() + gap_s
            finally:
                self.close()

    def note_output(self) -> None:
        """Take note of output that does not come through `limited`, while that waits."""
        if self._allowance.gap_s < math.inf:
            end_s = self._start_s + self._allowance.whole_s
            self._watchdog.extend(min(self._loop.time() + self._allowance.gap_s, end_s))

    def close(self) -> None:
        """Stop counting."""
        self._watchdog.close()

    async def _wait(self, work: Awaitable[ResultT], due_s: float) -> ResultT:
        if due_s == math.inf:
            return await work
        try:
            return await self._watchdog.wait(work, due_s)
        except TimeoutError:
            spent_s = self._loop.time() - self._start_s
            raise DeadlineExceeded(
                f"the answer is late and was ended after {spent_s:.0f} s"
            ) from None
