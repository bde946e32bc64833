"""Keeps an ingress from submitting requests that would be refused: a call costs milliseconds.

A replica says with each verdict how many more requests it would accept, and how fast that grows.
What goes beyond it is refused here, at once, and so is what waits here for its turn to be
submitted. Few submissions are on their way at a time, so that a burst hears of the first verdict
before most of it is sent.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.errors import Overloaded
from engine.runtime.messages import Verdict
from engine.types import Terms

# submissions of one account that have no verdict yet
MAX_ON_THEIR_WAY = 64
# share of the longest wait of an account: a request that would wait as long stands for others
PATIENT = 0.9
# places that must probably have opened before one of them is taken: fewer may have than usually do
SPARE = 2.0
# seconds that a verdict is believed; after these a replica that had no room is asked by one request
# at a time, until what it has said is forgotten
BELIEVED_S = 1.0
FORGOTTEN_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a replica has said of an account, and when."""

    verdict: Verdict
    at_s: float

    def room(self, now_s: float) -> float:
        """Requests that it would probably accept now, at least; infinite if that is too long ago.

        One that had none is asked again by one request at a time.
        """
        assert self.verdict.room is not None
        age_s = now_s - self.at_s
        opened = max(0.0, self.verdict.opens_per_s * age_s - SPARE)
        room = max(0.0, self.verdict.room + opened)
        if age_s < BELIEVED_S:
            return room
        return 1.0 if room < 1 else math.inf


@dataclass(slots=True)
class _Account:
    """Submissions of one account, and what each replica has said.

    Attributes:
        patience_s: the longest time that a request of it was ready to wait.
    """

    on_their_way: int = 0
    patience_s: float = 0.0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    said: dict[str, _Said] = field(default_factory=dict)

    @property
    def num_open(self) -> int:
        """Submissions without a verdict."""
        return self.on_their_way + len(self.waiting)

    def excess(self, now_s: float) -> float:
        """Submissions without a verdict beyond what replicas have room for; may be negative."""
        forgotten_s = now_s - FORGOTTEN_S
        self.said = {name: said for name, said in self.said.items() if said.at_s > forgotten_s}
        rooms = [said.room(now_s) for said in self.said.values()]
        return self.num_open - sum(rooms) if rooms else -math.inf

    def error(self) -> Overloaded:
        """The error of a request that is too many."""
        retry_after_s = max(said.verdict.retry_after_s for said in self.said.values())
        return Overloaded(
            "more requests wait than can be served in time; retry later",
            retry_after_s=max(1.0, retry_after_s),
        )


class SubmissionGate:
    """The submissions of one ingress by account. Lives in one asyncio loop."""

    def __init__(self, max_on_their_way: int = MAX_ON_THEIR_WAY) -> None:
        self._max_on_their_way = max_on_their_way
        self._accounts: dict[bytes, _Account] = {}

    def check(self, account: bytes) -> None:
        """Return if a request of an account may be submitted, as far as is known.

        Raises:
            Overloaded: if no replica has room for it.
        """
        found = self._accounts.get(account)
        # with this one
        if found is not None and found.excess(_now_s()) + 1 > 0:
            raise found.error()

    @asynccontextmanager
    async def passing(self, terms: Terms) -> AsyncIterator[None]:
        """Wait until a request may be submitted; it is on its way until the end of the block.

        Raises:
            Overloaded: if no replica has room for it, or if it waits here for too long.
        """
        account = self._accounts.setdefault(terms.account, _Account())
        account.patience_s = max(account.patience_s, terms.max_wait_s)
        self.check(terms.account)
        if account.on_their_way < self._max_on_their_way:
            account.on_their_way += 1
        else:
            await self._turn(account, terms.max_wait_s)
        try:
            yield
        finally:
            self._leave(account)

    def hear(self, terms: Terms, verdict: Verdict) -> None:
        """Note what a replica has said; requests that wait here beyond its room are refused.

        What it says of a request that would not wait for as long as others says nothing of these.
        """
        found = self._accounts.get(terms.account)
        if found is None or verdict.room is None:
            return
        if terms.max_wait_s < PATIENT * found.patience_s:
            return
        now_s = _now_s()
        found.said[verdict.replica] = _Said(verdict=verdict, at_s=now_s)
        # the one that has its verdict now is still counted
        while found.waiting and found.excess(now_s) > 1:
            turn = found.waiting.pop()
            if not turn.done():
                turn.set_exception(found.error())

    async def _turn(self, account: _Account, max_wait_s: float) -> None:
        """Wait until another submission has its verdict, and take its place."""
        turn = asyncio.get_running_loop().create_future()
        account.waiting.append(turn)
        try:
            async with asyncio.timeout(None if max_wait_s == math.inf else max_wait_s):
                await turn
        except BaseException as error:
            if turn in account.waiting:
                account.waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                # the place came too late
                self._leave(account)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    "the request has waited for as long as it may; retry later", retry_after_s=1.0
                ) from None
            raise

    def _leave(self, account: _Account) -> None:
        """Give a place to who waits for one."""
        while account.waiting:
            turn = account.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        account.on_their_way -= 1


def _now_s() -> float:
    return asyncio.get_running_loop().time()
