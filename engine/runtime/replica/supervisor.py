"""Runs an engine replica: admits requests, routes their output, has the gang kept running.

Requests go to the scheduler as they came, in bytes. Each output of the scheduler is split by client
and queued in the client's session.

When the gang is lost (`gang_keeper`), every open choice ends: by CRASHED if its request was in the
batch or may have been, by LOST if it waited. Until another gang is ready, requests are refused by
`EngineUnavailable`. Sessions and leases of clients go on, and what was pinned is pinned again. Only
when no gang can be started does the health check fail, and Serve replaces the replica.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from ray.exceptions import RayActorError

from engine.config import EngineConfig, PrefixConfig
from engine.errors import (
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    RequestError,
)
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
from engine.runtime.metrics.engine_table import READY, STARTUP_S, STEP_AGE_S, UNDELIVERED
from engine.runtime.metrics.metric_store import Series
from engine.runtime.metrics.replica_meters import ReplicaMeters
from engine.runtime.outputs import ended_choices, failure, split_by_client
from engine.runtime.replica.admission import Admission
from engine.runtime.replica.client_session import CLIENT_LIMITS, SLOW, ClientLimits
from engine.runtime.replica.gang import Gang
from engine.runtime.replica.held_pins import HeldPins
from engine.runtime.replica.sessions import Sessions
from engine.runtime.replica.watch.gang_keeper import GangKeeper, State
from engine.runtime.routing.load_meter import LoadMeter
from engine.types import (
    ALL_CHOICES,
    Capacity,
    FinishReason,
    Request,
    StepStats,
    int32,
    int64,
)

logger = logging.getLogger(__name__)


class Supervisor:
    """Owns the gang of a replica, and the sessions of its clients. Lives in one asyncio loop.

    Implements `engine.runtime.replica.watch.watched_gang.GangOwner` for the keeper of its gang.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Gang]],
        config: EngineConfig,
        make_ready: Callable[["Supervisor", bool], Awaitable[None]],
        *,
        replica: str,
        limits: ClientLimits = CLIENT_LIMITS,
        is_alive: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        """Take note of how to start; `start` does it.

        Args:
            start: makes a gang, see `start_gang`.
            make_ready: has a new gang compute what must be there before it serves, by requests
                that are `own`; its second argument is whether the gang is the first one. See
                `GangOwner.make_ready`.
            replica: tag of this replica, part of every verdict.
            is_alive: whether the process of a client lives; None if nobody knows.
        """
        self._config = config
        self._make_ready = make_ready
        self._replica = replica
        self._close_last: list[Callable[[], Awaitable[None]]] = []
        self._admission: Admission | None = None
        self._sessions = Sessions(
            limits, on_lost=self._forget, on_full=self._end_unread, is_alive=is_alive
        )
        self._pins = HeldPins()
        self._is_first_gang = True
        self._loop = asyncio.get_running_loop()
        self._meters = ReplicaMeters(
            config, replica=replica, send=self._send, clock=self._loop.time
        )
        self._keeper = GangKeeper(start, config, self, replica=replica)

    async def start(self) -> None:
        """Start the gang and serve; returns when requests can come.

        Raises:
            ServeError: with the reason, if no gang can be started; nothing is left then.
        """
        await self._keeper.start()

    def close_last(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` end something that all gangs use, when none is left."""
        self._close_last.append(close)

    @property
    def replica(self) -> str:
        """Tag of this replica."""
        return self._replica

    @property
    def stats(self) -> StepStats:
        """Counts after the latest step."""
        return self._meters.stats

    @property
    def meter(self) -> LoadMeter:
        """What is measured for routing and scaling."""
        return self._meters.load

    def series(self) -> list[Series]:
        """What has been measured since the start, of all gangs."""
        metrics, store = self._meters.metrics, self._meters.metrics.store
        metrics.set_gauges()
        store.set(READY, int(self.is_healthy))
        age_s = metrics.seconds_since_step(self._loop.time()) if self.num_open else 0.0
        store.set(STEP_AGE_S, age_s)
        store.set(STARTUP_S, self._keeper.took_s)
        store.set(UNDELIVERED, self._sessions.undelivered_bytes)
        return store.series()

    async def view(self, first_event: int) -> bytes:
        """What is to be seen now, as an encoded `ReplicaView`; see `LiveView.view`."""
        return await self._meters.live.view(first_event, self.series, is_ready=self.is_healthy)

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output in tokens, as far as the gang's KV pool holds it."""
        assert self._admission is not None, "a gang is there"
        return self._admission.max_model_len

    @property
    def num_open(self) -> int:
        """Requests that were accepted and have not ended."""
        return len(self._sessions.by_request)

    @property
    def num_open_choices(self) -> int:
        """Choices of the open requests that have not ended."""
        return self._sessions.num_choices

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and are not in the batch yet."""
        return max(0, self.num_open - self.stats.num_running)

    @property
    def is_healthy(self) -> bool:
        """Whether the gang serves and, while requests are open, makes steps."""
        return self._keeper.is_serving

    def submit(self, client: int, data: bytes, *, is_own: bool = False) -> bytes:
        """Accept or refuse a client's encoded `Request`; returns an encoded `Verdict`.

        Args:
            is_own: whether the replica itself asks, to make a new gang ready.

        Raises:
            EngineError: if no gang will serve here again.
        """
        request = REQUESTS.decode(data)
        try:
            self._check_serving(is_own)
            self._check(request)
        except (RequestError, EngineUnavailable) as error:
            verdict = Verdict(replica=self._replica, refusal=refusal_of(error))
            if isinstance(error, Overloaded):
                verdict = self._with_room(verdict, request)
                self._meters.metrics.refused(error.reason)
        else:
            verdict = self._with_room(Verdict(replica=self._replica), request)
            if is_own or request.pin is not None:
                self._meters.metrics.own_request(request)
            self._accept(client, request, data)
        return VERDICTS.encode(verdict)

    def abort(self, request_ids: Iterable[int], choice: int = ALL_CHOICES) -> None:
        """End requests, or one choice of each; unknown ones are ignored."""
        ids = int64(list(request_ids))
        self._send(COMMANDS.encode(Withdrawal(ids, int32([choice] * len(ids)))))

    def release_prefix(self, salt: bytes, name: str) -> None:
        """Release a tenant's pinned prefix; unknown ones are ignored."""
        self._pins.release(salt, name)
        self._send(COMMANDS.encode(Withdrawal(int64(), int32(), prefixes=((salt, name),))))

    def prefixes(self, salt: bytes) -> bytes:
        """A tenant's pinned prefixes, encoded by `PREFIXES`."""
        # the scheduler's clock is this one: both are the machine's
        return PREFIXES.encode(list_prefixes(self._pins.listed, salt, self._loop.time()))

    def pins(self) -> bytes:
        """The pinned prefixes of all tenants, for a replica that joins; encoded by `PINS`."""
        return PINS.encode(list_pins(self._pins.listed, self._loop.time()))

    def missing_pins(self) -> list[PrefixConfig]:
        """What a lost gang had pinned and the one of now has not, with the time that is left."""
        return list_pins(self._pins.missing, self._loop.time())

    def renew(self, client: int, received_bytes: int) -> None:
        """Note that a client lives and how much of its stream it has read."""
        self._sessions.renew(client, received_bytes)

    def attach(self, client: int) -> AsyncGenerator[bytes, None]:
        """Yield batches of encoded outputs (`decode_batch`) until the client has been idle.

        Raises:
            EngineError: if the client was silent or slow for too long; its requests are aborted.
        """
        return self._sessions.of(client).stream()

    def check_health(self) -> None:
        """Pass while a gang serves or is being started; answers from what is known.

        Raises:
            ray.exceptions.RayActorError: if no gang will serve here again; on this error Serve
                replaces the replica at once.
        """
        if self._keeper.state in (State.LOST, State.CLOSED):
            raise RayActorError(error_msg=self._end_message())

    async def close(self) -> None:
        """End the processes, the streams and what they hold; may be called again."""
        self._sessions.close("the engine replica has been stopped")
        await self._keeper.close()
        while self._close_last:
            await self._close_last.pop()()

    def take_over(self, capacity: Capacity) -> None:
        """See `GangOwner.take_over`."""
        self._admission = Admission(self._config, capacity, self._meters.line)
        self._meters.take_over(capacity)

    async def make_ready(self) -> None:
        """See `GangOwner.make_ready`."""
        await self._make_ready(self, self._is_first_gang)
        self._is_first_gang = False
        self._pins.settle()

    def deliver(self, message: bytes) -> None:
        """See `GangOwner.deliver`."""
        output = OUTPUTS.decode(message)
        if output.snapshot is not None:
            self._meters.live.take(output.snapshot)
            return
        if output.pinned is not None:
            self._pins.report(output.pinned)
        explained = self._meters.observe(output)
        if explained is not output:
            output, message = explained, OUTPUTS.encode(explained)
        parts = split_by_client(output, message, self._sessions.by_request)
        num_ended = sum(self._sessions.end(*choice) for choice in ended_choices(output))
        self._meters.line.observe(output, num_ended)
        for session, part in parts.items():
            session.put(part, output.request_ids)
        if output.failure and self._keeper.gang is not None:
            self._keeper.gang.note_last_output(output.failure)

    def end_open(self, reason: FinishReason) -> None:
        """See `GangOwner.end_open`."""
        self._meters.lose_gang()
        self._pins.lose()
        for session, choices in self._sessions.end_all():
            ended = failure(choices, self.stats, reason=reason)
            session.put(OUTPUTS.encode(ended), ended.request_ids)

    def _check_serving(self, is_own: bool) -> None:
        state = self._keeper.state
        if state in (State.LOST, State.CLOSED):
            raise EngineError(self._end_message())
        gang = self._keeper.gang
        is_ready_for_own = is_own and gang is not None and not gang.loss.done()
        if state is State.STARTING and not is_ready_for_own:
            raise EngineUnavailable(
                "the engine's processes are being started again",
                retry_after_s=self._keeper.retry_after_s,
            )

    def _check(self, request: Request) -> None:
        if request.request_id in self._sessions.by_request:
            raise InvalidRequest(f"request {request.request_id} is open already")
        assert self._admission is not None, "a gang is there"
        self._admission.check(request, num_waiting=self.num_waiting)

    def _with_room(self, verdict: Verdict, request: Request) -> Verdict:
        assert self._admission is not None, "a gang is there"
        return self._admission.with_room(
            verdict, request, num_waiting=self.num_waiting, num_clients=self._sessions.num_busy
        )

    def _accept(self, client: int, request: Request, encoded: bytes) -> None:
        if not self.num_open and self._keeper.gang is not None:
            # without open requests no step was due
            self._keeper.gang.expect_step()
        self._sessions.open(client, request.request_id, request.sampling.n)
        self._meters.accept(request)
        self._send(encoded)

    def _send(self, message: bytes) -> None:
        """Send to the scheduler; without one there is nothing to end or to release."""
        if self._keeper.gang is not None:
            self._keeper.gang.channel.send(message)

    def _end_message(self) -> str:
        reason = self._keeper.reason or "the replica has been stopped"
        return f"the engine's processes are gone: {reason}"

    def _forget(self, client: int, reason: str, request_ids: list[int]) -> None:
        """Abort the requests of a client that is gone or does not read."""
        if request_ids or reason == SLOW:
            self._meters.metrics.lost_client(reason)
            logger.warning(
                "client_lost client=%x reason=%s open=%d", client, reason, len(request_ids)
            )
        self._meters.forget(request_ids)
        if request_ids:
            self.abort(request_ids)

    def _end_unread(self, client: int, request_id: int) -> None:
        """End a request whose client takes nothing; it goes on with it when it reads that."""
        session = self._sessions.of(client)
        logger.warning("request_unread client=%x request_id=%d", client, request_id)
        choices = [(request_id, choice) for choice in session.open.of(request_id)]
        for choice in choices:
            self._sessions.end(*choice)
        self._meters.forget((request_id,))
        self.abort((request_id,))
        ended = failure(choices, self.stats, reason=FinishReason.LOST)
        session.put(OUTPUTS.encode(ended), (request_id,))
