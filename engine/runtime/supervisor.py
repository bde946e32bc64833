"""Inside the engine replica: admits requests, forwards bytes, watches over the gang."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable

from ray.exceptions import RayActorError

from engine.config import EngineConfig
from engine.errors import EngineError, RequestError
from engine.runtime.admission import Admission
from engine.runtime.async_channel import AsyncChannel
from engine.runtime.columns import (
    client_of,
    ended_requests,
    failure,
    idle_stats,
    part_by_client,
)
from engine.runtime.gang import Gang
from engine.runtime.mailbox import Mailbox
from engine.runtime.messages import (
    COMMANDS,
    OUTPUTS,
    REQUESTS,
    VERDICTS,
    Command,
    Verdict,
    refusal_of,
)
from engine.types import Request, StepStats, int64

logger = logging.getLogger(__name__)

LEASE_S = 5.0
IDLE_S = 3.0


class Supervisor:
    """Owns a gang for its life. Lives in one asyncio loop; every method returns at once."""

    def __init__(
        self,
        gang: Gang,
        config: EngineConfig,
        *,
        replica: str,
        step_deadline_s: float,
        lease_s: float = LEASE_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """Begin to serve.

        Args:
            replica: tag of this replica, told in every verdict.
            step_deadline_s: seconds without a step, while requests are open, that mean a hang.
            lease_s, idle_s: see `Mailbox`.
        """
        self._gang = gang
        self._replica = replica
        self._step_deadline_s = step_deadline_s
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._admission = Admission(config, gang.capacity)
        self._mailboxes: dict[int, Mailbox] = {}
        self._stats = idle_stats(gang.capacity)
        self._loop = asyncio.get_running_loop()
        self._progress_s = self._loop.time()
        self._is_lost = False
        self._channel = AsyncChannel(
            gang.channel, on_message=self._deliver, on_closed=self._lose_gang
        )

    @property
    def stats(self) -> StepStats:
        """Counts after the latest step."""
        return self._stats

    @property
    def num_open(self) -> int:
        """Requests that were accepted and have not ended."""
        return sum(len(mailbox.open_ids) for mailbox in self._mailboxes.values())

    @property
    def num_waiting(self) -> int:
        """Requests that were accepted and are not in the batch yet."""
        return max(0, self.num_open - self._stats.num_running)

    @property
    def is_healthy(self) -> bool:
        """Whether the gang lives and, while requests are open, makes steps."""
        silent_s = self._loop.time() - self._progress_s
        return not self._is_lost and not (self.num_open and silent_s > self._step_deadline_s)

    def submit(self, data: bytes) -> bytes:
        """Accept or refuse an encoded `Request`; returns an encoded `Verdict`.

        Raises:
            EngineError: if the gang is lost.
        """
        request = REQUESTS.decode(data)
        if self._is_lost:
            raise EngineError("the engine's processes have died")
        try:
            self._admission.check(request, num_waiting=self.num_waiting, now_s=self._loop.time())
        except RequestError as error:
            verdict = Verdict(replica=self._replica, refusal=refusal_of(error))
        else:
            self._accept(request)
            verdict = Verdict(replica=self._replica)
        return VERDICTS.encode(verdict)

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests; unknown ones are ignored."""
        self._channel.send(COMMANDS.encode(Command(aborts=int64(list(request_ids)))))

    def renew(self, client: int) -> None:
        """Note that a client lives."""
        if client in self._mailboxes:
            self._mailboxes[client].renew()

    def attach(self, client: int) -> AsyncIterator[bytes]:
        """Yield batches of encoded outputs (`decode_batch`) until the client has been idle.

        Raises:
            EngineError: if the client was silent for so long that its requests were aborted.
        """
        return self._mailbox(client).stream()

    async def check_health(self) -> None:
        """Pass if every process lives and steps are made.

        Raises:
            ray.exceptions.RayActorError: if a process is dead; also after a hang, which ends them.
            EngineError: if the gang is beyond use.
        """
        if not self.is_healthy:
            self._lose_gang()
        try:
            await self._gang.ping()
        except RayActorError:
            # Serve ends the replica at once, and with it the chance to clean up
            self._lose_gang()
            raise
        if self._is_lost:
            raise EngineError("the engine's processes have died")

    def close(self) -> None:
        """End the processes, the streams and what they hold."""
        self._is_lost = True
        self._channel.close()
        for mailbox in self._mailboxes.values():
            mailbox.close()
        self._mailboxes.clear()
        self._gang.close()

    def _accept(self, request: Request) -> None:
        if not self.num_open:
            self._progress_s = self._loop.time()
        self._mailbox(client_of(request.request_id)).opened(request.request_id)
        self._channel.send(COMMANDS.encode(Command(request=request)))

    def _mailbox(self, client: int) -> Mailbox:
        if client not in self._mailboxes:
            self._mailboxes[client] = Mailbox(
                lease_s=self._lease_s, idle_s=self._idle_s, on_lapsed=lambda: self._drop(client)
            )
        return self._mailboxes[client]

    def _drop(self, client: int) -> None:
        """Forget a client that is gone and free what belongs to it."""
        mailbox = self._mailboxes.pop(client)
        mailbox.close()
        if mailbox.open_ids:
            logger.warning("client_gone client=%d open=%d", client, len(mailbox.open_ids))
            self.abort(mailbox.open_ids)

    def _deliver(self, data: bytes) -> None:
        output = OUTPUTS.decode(data)
        self._progress_s = self._loop.time()
        self._stats = output.stats
        ended = ended_requests(output)
        self._admission.finished(len(ended), self._progress_s)
        for request_id in ended:
            if mailbox := self._mailboxes.get(client_of(request_id)):
                mailbox.open_ids.discard(request_id)
        for client, part in part_by_client(output, data).items():
            if mailbox := self._mailboxes.get(client):
                mailbox.put(part)

    def _lose_gang(self) -> None:
        """Fail every open request and end what is left of the gang."""
        if self._is_lost:
            return
        logger.error("gang_lost replica=%s open=%d", self._replica, self.num_open)
        self._is_lost = True
        self._channel.close()
        for mailbox in self._mailboxes.values():
            if mailbox.open_ids:
                mailbox.put(OUTPUTS.encode(failure(sorted(mailbox.open_ids), self._stats)))
                mailbox.open_ids.clear()
        self._gang.close()
