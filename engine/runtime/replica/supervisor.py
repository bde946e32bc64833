"""Runs an engine replica: admits requests, routes their output, watches the gang.

Requests go to the scheduler as they came, in bytes. Each output of the scheduler is split by client
and queued in the client's session.

Health is progress: the replica is healthy as long as its processes live and, while requests are
open, the scheduler sends an output at least once in `step_deadline_s`. The first sign to the
contrary, or a channel that closes, fails every open request and ends the gang; Serve then replaces
the replica.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from functools import partial

from ray.exceptions import RayActorError

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidRequest, RequestError
from engine.runtime.client.prefix_list import list_pins, list_prefixes
from engine.runtime.messages import (
    COMMANDS,
    OUTPUTS,
    PINS,
    PREFIXES,
    REQUESTS,
    VERDICTS,
    Verdict,
    Withdrawal,
    refusal_of,
)
from engine.runtime.outputs import ended_choices, failure, idle_stats, split_by_client
from engine.runtime.replica.admission import Admission
from engine.runtime.replica.async_channel import AsyncChannel
from engine.runtime.replica.client_session import (
    CLIENT_LIMITS,
    SLOW,
    ClientLimits,
    ClientSession,
)
from engine.runtime.replica.gang import Gang
from engine.runtime.replica.load_meter import LoadMeter
from engine.runtime.replica.preemption_log import PreemptionLog
from engine.types import ALL_CHOICES, PinnedPrefix, Request, StepStats, int32, int64

logger = logging.getLogger(__name__)


class Supervisor:
    """Owns a gang for its life. Lives in one asyncio loop; every method returns at once."""

    def __init__(
        self,
        gang: Gang,
        config: EngineConfig,
        *,
        replica: str,
        step_deadline_s: float,
        limits: ClientLimits = CLIENT_LIMITS,
    ) -> None:
        """Begin to serve.

        Args:
            replica: tag of this replica, part of every verdict.
            step_deadline_s: seconds without a step, while requests are open, that mean a hang.
        """
        self._gang = gang
        self._replica = replica
        self._step_deadline_s = step_deadline_s
        self._limits = limits
        self._admission = Admission(config, gang.capacity)
        self._sessions: dict[int, ClientSession] = {}
        self._session_of: dict[int, ClientSession] = {}
        self._preemption_log = PreemptionLog()
        self._stats = idle_stats(gang.capacity)
        self._pinned: tuple[PinnedPrefix, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._meter = LoadMeter(self._stats, gang.capacity.block_size, self._loop.time)
        self._progress_s = self._loop.time()
        self._is_lost = False
        self._channel = AsyncChannel(
            gang.channel, on_message=self._deliver, on_closed=self._lose_gang
        )

    @property
    def replica(self) -> str:
        """Tag of this replica."""
        return self._replica

    @property
    def stats(self) -> StepStats:
        """Counts after the latest step."""
        return self._stats

    @property
    def meter(self) -> LoadMeter:
        """What is measured for routing and scaling."""
        return self._meter

    @property
    def num_open(self) -> int:
        """Requests that were accepted and have not ended."""
        return len(self._session_of)

    @property
    def num_open_choices(self) -> int:
        """Choices of the open requests that have not ended."""
        return sum(session.open.num_choices for session in self._sessions.values())

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and are not in the batch yet."""
        return max(0, self.num_open - self._stats.num_running)

    @property
    def is_healthy(self) -> bool:
        """Whether the gang lives and, while requests are open, makes steps."""
        silent_s = self._loop.time() - self._progress_s
        return not self._is_lost and not (self.num_open and silent_s > self._step_deadline_s)

    def submit(self, client: int, data: bytes) -> bytes:
        """Accept or refuse a client's encoded `Request`; returns an encoded `Verdict`.

        Raises:
            EngineError: if the gang is lost.
        """
        request = REQUESTS.decode(data)
        if self._is_lost:
            raise EngineError("the engine's processes have died")
        try:
            self._check(request)
        except RequestError as error:
            verdict = Verdict(replica=self._replica, refusal=refusal_of(error))
        else:
            self._accept(client, request, data)
            verdict = Verdict(replica=self._replica)
        return VERDICTS.encode(verdict)

    def abort(self, request_ids: Iterable[int], choice: int = ALL_CHOICES) -> None:
        """End requests, or one choice of each; unknown ones are ignored."""
        ids = int64(list(request_ids))
        aborts = Withdrawal(ids, int32([choice] * len(ids)))
        self._channel.send(COMMANDS.encode(aborts))

    def release_prefix(self, salt: bytes, name: str) -> None:
        """Release a tenant's pinned prefix; unknown ones are ignored."""
        release = Withdrawal(int64(), int32(), prefixes=((salt, name),))
        self._channel.send(COMMANDS.encode(release))

    def prefixes(self, salt: bytes) -> bytes:
        """A tenant's pinned prefixes, encoded by `PREFIXES`."""
        # the scheduler's clock is this one: both are the machine's
        return PREFIXES.encode(list_prefixes(self._pinned, salt, self._loop.time()))

    def pins(self) -> bytes:
        """The pinned prefixes of all tenants, for a replica that joins; encoded by `PINS`."""
        return PINS.encode(list_pins(self._pinned, self._loop.time()))

    def renew(self, client: int, received_bytes: int) -> None:
        """Note that a client lives and how much of its stream it has read."""
        if client in self._sessions:
            self._sessions[client].renew(received_bytes)

    def attach(self, client: int) -> AsyncIterator[bytes]:
        """Yield batches of encoded outputs (`decode_batch`) until the client has been idle.

        Raises:
            EngineError: if the client was silent or slow for too long; its requests are aborted.
        """
        return self._session(client).stream()

    async def check_health(self) -> None:
        """Pass if every process lives and steps are made.

        Raises:
            ray.exceptions.RayActorError: if a process is dead; also after a hang, which ends them.
            EngineError: if the gang was lost in another way.
        """
        if not self.is_healthy:
            self._lose_gang()
        try:
            await self._gang.ping()
        except RayActorError:
            # clean up now: on this error Serve ends the replica at once
            self._lose_gang()
            raise
        if self._is_lost:
            raise EngineError("the engine's processes have died")

    def close(self) -> None:
        """End the processes, the streams and what they hold."""
        self._is_lost = True
        self._channel.close()
        for session in self._sessions.values():
            session.close("the engine replica has been stopped")
        self._sessions.clear()
        self._session_of.clear()
        self._gang.close()

    def _check(self, request: Request) -> None:
        if request.request_id in self._session_of:
            raise InvalidRequest(f"request {request.request_id} is open already")
        self._admission.check(request, num_waiting=self.num_waiting, now_s=self._loop.time())

    def _accept(self, client: int, request: Request, encoded: bytes) -> None:
        if not self._session_of:
            # without open requests no step was due
            self._progress_s = self._loop.time()
        session = self._session_of[request.request_id] = self._session(client)
        session.opened(request.request_id, request.sampling.n)
        self._meter.accepted(request)
        self._channel.send(encoded)

    def _session(self, client: int) -> ClientSession:
        if client not in self._sessions:
            self._sessions[client] = ClientSession(
                self._limits, on_lost=partial(self._drop, client)
            )
        return self._sessions[client]

    def _drop(self, client: int, reason: str) -> None:
        """Forget a client that is gone or does not read, and abort its requests."""
        session = self._sessions.pop(client)
        session.close(f"the engine replica has given up this client: it was {reason}")
        request_ids = session.open.request_ids
        if request_ids or reason == SLOW:
            logger.warning(
                "client_lost client=%x reason=%s open=%d", client, reason, len(request_ids)
            )
        for request_id in request_ids:
            del self._session_of[request_id]
            self._meter.forget(request_id)
        if request_ids:
            self.abort(request_ids)

    def _deliver(self, data: bytes) -> None:
        output = OUTPUTS.decode(data)
        self._progress_s = self._loop.time()
        self._stats = output.stats
        if output.pinned is not None:
            self._pinned = output.pinned
        self._preemption_log.note(output.stats, self._progress_s)
        self._meter.observe(output)
        parts = split_by_client(output, data, self._session_of)
        num_ended = sum(self._close(*choice) for choice in ended_choices(output))
        self._admission.finished(num_ended, self._progress_s)
        for session, part in parts.items():
            session.put(part, output.request_ids)

    def _close(self, request_id: int, choice: int) -> bool:
        """Note that a choice has ended; True if its request has ended with it."""
        session = self._session_of.get(request_id)
        if session is None or not session.open.close(request_id, choice):
            return False
        del self._session_of[request_id]
        return True

    def _lose_gang(self) -> None:
        """Fail every open request and end what is left of the gang."""
        if self._is_lost:
            return
        logger.error("gang_lost replica=%s open=%d", self._replica, self.num_open)
        self._is_lost = True
        self._channel.close()
        self._session_of.clear()
        for session in list(self._sessions.values()):
            if session.open:
                lost = failure(session.open, self._stats)
                session.open.clear()
                session.put(OUTPUTS.encode(lost), lost.request_ids)
        self._gang.close()
