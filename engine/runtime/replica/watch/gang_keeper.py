"""Keeps a gang running in its replica: starts it, and starts it again when it is lost.

    starting -> serving    all processes have started, a token came out of all ranks, and what was
                           pinned is pinned again
    serving -> starting    the gang is lost, see `WatchedGang`
    starting -> lost       too many starts in a row have failed: Serve must replace the replica
    any -> closed

A gang is not mended. When one process is lost all are ended, and new ones start in the same
placement group once nothing is left of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto

from engine.config import EngineConfig
from engine.errors import EngineError, WorkerDied
from engine.runtime.replica.gang import Gang
from engine.runtime.replica.watch.watched_gang import GangOwner, WatchedGang

logger = logging.getLogger(__name__)

# a gang that is lost within this time after its start counts as one that failed to start
STEADY_S = 30.0
# pause before a start that follows a failed one, doubled for each further one
BACK_OFF_S, MAX_BACK_OFF_S = 1.0, 30.0
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class State(Enum):
    """Where the gang of a replica is."""

    STARTING = auto()
    SERVING = auto()
    LOST = auto()
    CLOSED = auto()


class GangKeeper:
    """Owns the gang of a replica, one after the other. Lives in one asyncio loop.

    Attributes:
        state: what may be done now.
        gang: the one that runs, ready or not; None between two.
        reason: why the last one was lost or could not start; empty before.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Gang]],
        config: EngineConfig,
        owner: GangOwner,
        *,
        replica: str,
    ) -> None:
        """Args: start: makes a gang, or raises and leaves nothing of it; see `start_gang`."""
        self.state = State.STARTING
        self.gang: WatchedGang | None = None
        self.reason = ""
        self._start = start
        self._config = config
        self._owner = owner
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        self._keeping: asyncio.Task[None] | None = None
        self._num_failures = 0
        # of the last start or loss, and of the service between the two
        self._begun_s = self._ready_s = self._loop.time()
        # the last start that succeeded
        self._took_s = 0.0

    @property
    def is_serving(self) -> bool:
        """Whether the gang takes requests and makes steps while there are any."""
        is_silent = self.gang is not None and self.gang.is_silent
        return self.state is State.SERVING and not is_silent

    @property
    def took_s(self) -> float:
        """Seconds of the last start that succeeded; 0 before."""
        return self._took_s

    @property
    def retry_after_s(self) -> float:
        """Seconds until the gang is likely to serve, if the last start is a guide."""
        left_s = self._begun_s + self._took_s - self._loop.time()
        return min(MAX_RETRY_S, max(MIN_RETRY_S, left_s))

    async def start(self) -> None:
        """Start the gang, by several attempts if it must be, then keep it running.

        Raises:
            ServeError: what a rank or the owner raises on purpose; it is not tried again.
            EngineError: with the reason of the last attempt.
        """
        await self._start_until_ready()
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """End the processes; may be called again."""
        self.state = State.CLOSED
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await self._end_gang()

    async def _keep(self) -> None:
        """Replace each gang that is lost by another one, until that fails too often."""
        try:
            while True:
                await self._replace()
        except Exception as error:  # whatever it is, the replica cannot go on
            if not isinstance(error, EngineError):
                logger.exception("gang_keeper_failed replica=%s", self._replica)
            self.reason = str(error) or type(error).__name__
            self.state = State.LOST
            logger.error("replica_lost replica=%s reason=%s", self._replica, self.reason)

    async def _replace(self) -> None:
        """Wait for the loss of the gang, then start another one."""
        assert self.gang is not None
        # a wait that is cancelled leaves the future as it is
        await asyncio.wait({self.gang.loss})
        is_steady = self._loop.time() - self._ready_s >= STEADY_S
        self._num_failures = 0 if is_steady else self._num_failures + 1
        num_open = self._owner.num_open
        self.reason = await self._end_gang()
        logger.error("gang_lost replica=%s open=%d reason=%s", self._replica, num_open, self.reason)
        self._check_attempts()
        await self._start_until_ready()

    async def _start_until_ready(self) -> None:
        while not await self._try_to_start():
            self._check_attempts()

    def _check_attempts(self) -> None:
        if self._num_failures >= self._config.start_attempts:
            raise EngineError(
                f"{self.reason}; that was failure {self._num_failures} in a row and "
                f"start_attempts is {self._config.start_attempts}"
            )

    async def _try_to_start(self) -> bool:
        """Whether a gang serves now; if not, nothing of it is left.

        Raises:
            ServeError: see `start`.
        """
        await asyncio.sleep(self._back_off_s())
        self._begun_s = self._loop.time()
        try:
            await self._start_one()
        except EngineError as error:
            self.reason = str(error)
            self._num_failures += 1
            logger.warning(
                "gang_start_failed replica=%s failure=%d of=%d reason=%s",
                self._replica,
                self._num_failures,
                self._config.start_attempts,
                error,
            )
            return False
        self._ready_s = self._loop.time()
        self._took_s = self._ready_s - self._begun_s
        self.state = State.SERVING
        logger.info("gang_ready replica=%s seconds=%.1f", self._replica, self._took_s)
        return True

    def _back_off_s(self) -> float:
        if not self._num_failures:
            return 0.0
        return min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** (self._num_failures - 1))

    async def _start_one(self) -> None:
        """Start a gang and make it ready within the deadline, or leave nothing of it."""
        deadline_s = self._config.start_deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                gang = await self._start()
                self.gang = WatchedGang(
                    gang, self._config, self._owner, on_loss=self._refuse_requests
                )
                await self.gang.make_ready()
        except BaseException as error:
            # also when the replica is closed meanwhile
            reason = await asyncio.shield(self._end_gang())
            if isinstance(error, TimeoutError):
                reason = f"the engine's processes were not ready after {deadline_s:g} s"
            if reason and isinstance(error, EngineError | TimeoutError):
                raise WorkerDied(reason) from error
            raise

    def _refuse_requests(self) -> None:
        if self.state is State.SERVING:
            self.state = State.STARTING
            self._begun_s = self._loop.time()

    async def _end_gang(self) -> str:
        """End the gang, if there is one; returns why it was lost."""
        if self.gang is None:
            return ""
        reason = await self.gang.end()
        self.gang = None
        return reason
