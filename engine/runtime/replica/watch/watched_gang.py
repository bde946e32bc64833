"""One gang from the moment it runs: notices when it is lost, ends it.

Health is progress: every process answers a ping in time, and while requests are open the scheduler
sends an output at least once in `step_deadline_s`. The first sign to the contrary counts:

    a process has ended       seen at once, by its descriptor
    a process is frozen       a ping that does not come back, whether the process is busy or idle
    the ranks fail or hang    the scheduler's last output says so
    the scheduler hangs       no output, a little longer than the scheduler itself would wait
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.errors import WorkerDied
from engine.runtime.replica.async_channel import AsyncChannel
from engine.runtime.replica.gang import SCHEDULER, Gang
from engine.types import Capacity, FinishReason

logger = logging.getLogger(__name__)

# for the scheduler's last output, once a rank is gone
LAST_WORDS_S = 2.0
# until a process whose channel is closed is gone
EXIT_S = 0.1
# so that the scheduler, which knows which requests ran, is the first to give up
DEADLINE_MARGIN_S = 2.0


class GangOwner(Protocol):
    """Who has requests for a gang, and takes its output."""

    @property
    def num_open(self) -> int:
        """Requests that the gang has and that have not ended."""
        ...

    def take_over(self, capacity: Capacity) -> None:
        """Take note of a new gang, which has no request."""
        ...

    async def make_ready(self) -> None:
        """Have a new gang do what must be done before it serves.

        Raises:
            EngineError: if the gang cannot.
            ServeError: another one, if it is of no use to try again.
        """
        ...

    def deliver(self, message: bytes) -> None:
        """Take a message of the scheduler."""
        ...

    def end_open(self, reason: FinishReason) -> None:
        """End every choice that is open, since the gang is lost."""
        ...


class WatchedGang:
    """Owns a gang and its end of the channel. Lives in one asyncio loop.

    Attributes:
        channel: to the scheduler, whose messages go to the owner.
        loss: done once the gang is lost; its result is the first sign of it.
    """

    def __init__(
        self, gang: Gang, config: EngineConfig, owner: GangOwner, *, on_loss: Callable[[], None]
    ) -> None:
        """Begin to watch. Args: on_loss: called at once when the gang is lost."""
        self._gang = gang
        self._config = config
        self._owner = owner
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self.loss: asyncio.Future[str] = self._loop.create_future()
        self._due_since_s = self._loop.time()
        self._has_spoken = False
        # no output will follow
        self._silence = asyncio.Event()
        owner.take_over(gang.capacity)
        self.channel = AsyncChannel(
            gang.channel, on_message=owner.deliver, on_closed=self._note_closed
        )
        self._watchers = [
            asyncio.create_task(self._watch_pings()),
            asyncio.create_task(self._watch_ends()),
        ]
        for watcher in self._watchers:
            watcher.add_done_callback(self._note_end_of_watch)

    @property
    def is_silent(self) -> bool:
        """Whether requests are open and no step has been made for too long."""
        limit_s = self._config.step_deadline_s + DEADLINE_MARGIN_S
        progress_s = max(self._due_since_s, self.channel.heard_s)
        return bool(self._owner.num_open) and self._loop.time() - progress_s > limit_s

    def expect_step(self) -> None:
        """Begin to count the time of a step: a request has come after a pause."""
        self._due_since_s = self._loop.time()

    def note_last_output(self, failure: str) -> None:
        """Take note that the scheduler has given up; it has ended what ran."""
        self._has_spoken = True
        self._silence.set()
        self._lose(failure)

    async def make_ready(self) -> None:
        """Have the owner make the gang ready.

        Raises:
            WorkerDied: if the gang is lost meanwhile.
            ServeError: see `GangOwner.make_ready`.
        """
        await self._unless_lost(self._owner.make_ready())

    async def end(self) -> str:
        """End what is open, then the gang, of which nothing is left; may be called again.

        Returns:
            Why it was lost; empty if it was not.
        """
        is_lost = self.loss.done()
        if is_lost:
            # a channel closes a little before its process is gone
            await asyncio.sleep(EXIT_S)
        ended = self._gang.ended()
        if self._owner.num_open and not self._silence.is_set():
            # without its ranks the scheduler has nothing to wait for
            self._gang.kill_ranks()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._silence.wait(), LAST_WORDS_S)
        # a scheduler that has spoken has named what ran, and the rest waited
        self._owner.end_open(FinishReason.LOST if self._has_spoken else FinishReason.CRASHED)
        reason = await self._reason(ended) if is_lost else ""
        for task in self._watchers:
            task.cancel()
        await asyncio.wait(self._watchers)
        self.channel.close()
        await self._gang.close()
        return reason

    async def _unless_lost(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self.loss}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.loss.done():
                raise WorkerDied(self.loss.result())
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                # its error counts only where it was the first to be seen
                task.exception()

    def _note_closed(self) -> None:
        self._silence.set()
        self._lose("the scheduler has closed its channel")

    def _lose(self, reason: str) -> None:
        if not self.loss.done():
            self.loss.set_result(reason)
            self._on_loss()

    async def _watch_pings(self) -> None:
        while not self.loss.done():
            await asyncio.sleep(self._config.ping_period_s)
            try:
                await self._gang.ping(self._config.ping_timeout_s)
            except WorkerDied as error:
                if SCHEDULER in error.late:
                    # it has no last word: what is open goes on the sooner
                    self._silence.set()
                self._lose(str(error))
            if self.is_silent:
                self._lose(f"no step was made in {self._config.step_deadline_s:g} s")

    async def _watch_ends(self) -> None:
        await self._gang.end()
        self._lose("a process has ended")

    def _note_end_of_watch(self, watcher: "asyncio.Task[None]") -> None:
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            logger.error("gang_watch_failed", exc_info=error)
            self._lose(f"the watch has failed: {error!r}")

    async def _reason(self, ended: list[str]) -> str:
        """What Ray says of the processes that had ended by themselves, or the first sign."""
        if self._has_spoken:
            # a scheduler that has given up ends itself
            ended = [name for name in ended if name != SCHEDULER]
        return await self._gang.explain(ended) or self.loss.result()
