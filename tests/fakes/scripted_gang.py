"""A replica without processes: the test answers for the scheduler, at the channel's other end."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from engine.errors import WorkerDied
from engine.runtime.messages import (
    COMMANDS,
    OUTPUTS,
    REQUESTS,
    VERDICTS,
    EngineCommand,
    Verdict,
)
from engine.runtime.replica.client_session import ClientLimits
from engine.runtime.replica.gang import Gang
from engine.runtime.replica.supervisor import Supervisor
from engine.types import ORDINARY_TERMS, Capacity, Request, SamplingParams, Terms, int32
from tests.channels import channel_pair
from tests.fakes.engine_handle import Row, tokens_output
from tests.fakes.loop_clock import settle
from tests.fakes.scripted_worker import engine_config
from tests.fakes.stream_reader import StreamReader

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)
STEP_DEADLINE_S, PING_PERIOD_S, PING_TIMEOUT_S, START_DEADLINE_S = 30.0, 1.0, 3.0, 100.0
HEALTH: dict[str, Any] = {
    "step_deadline_s": STEP_DEADLINE_S,
    "ping_period_s": PING_PERIOD_S,
    "ping_timeout_s": PING_TIMEOUT_S,
    "start_deadline_s": START_DEADLINE_S,
    "start_attempts": 3,
}
LIMITS = ClientLimits(lease_s=5.0, idle_s=3.0, coalesce_s=0.0)


class ScriptedGang(Gang):
    """Processes that live until the test says otherwise.

    Attributes:
        scheduler: the far end of the channel.
        running: rows that end what runs, which the scheduler sends when its ranks are killed; None
            for one that says nothing.
        frozen: who leaves pings without an answer; empty for nobody.
        closing: set once the gang may be gone.
    """

    def __init__(self, capacity: Capacity = CAPACITY) -> None:
        self.channel, self.scheduler = channel_pair()
        self.capacity = capacity
        self.running: list[Row] | None = None
        self.frozen = ""
        self.num_pings = 0
        self.dead: list[str] = []
        self.is_closed = False
        self.are_ranks_killed = False
        self.closing = asyncio.Event()
        self.closing.set()
        self._end = asyncio.Event()

    async def ping(self, timeout_s: float) -> None:
        self.num_pings += 1
        if self.frozen:
            await asyncio.sleep(timeout_s)
            message = f"{self.frozen} did not answer a ping in {timeout_s:g} s"
            raise WorkerDied(message, late=[self.frozen])

    async def end(self) -> None:
        await self._end.wait()

    def ended(self) -> list[str]:
        return self.dead

    async def explain(self, names: Collection[str]) -> str:
        return "; ".join(f"{name} died: killed by the test" for name in names)

    def die(self, name: str) -> None:
        """End a process."""
        self.dead.append(name)
        self._end.set()

    def speak(self, failure: str) -> None:
        """Have the scheduler send its last output, which ends what runs."""
        output = replace(tokens_output(self.running or []), failure=failure)
        self.scheduler.send(OUTPUTS.encode(output))

    def kill_ranks(self) -> None:
        self.are_ranks_killed = True
        if self.running is not None:
            self.speak("rank 0 died")

    async def close(self) -> None:
        await self.closing.wait()
        self.is_closed = True
        self.scheduler.close()


class Replica:
    """A supervisor, and what a scheduler would receive from it and send to it.

    Attributes:
        gangs: all that were started, the latest last.
        failures: what the next starts raise instead; None for one that succeeds.
        made_ready: for each gang that was made ready, whether it was the first.
        making_ready: set while gangs are made ready at once.
    """

    def __init__(self, *, limits: ClientLimits = LIMITS, **settings: Any) -> None:
        self.gangs: list[ScriptedGang] = []
        self.failures: list[Exception | None] = []
        self.made_ready: list[bool] = []
        self.making_ready = asyncio.Event()
        self.making_ready.set()
        self.starting = asyncio.Event()
        self.starting.set()
        self.supervisor = Supervisor(
            self._start,
            replace(engine_config(**settings), **HEALTH),
            self._make_ready,
            replica="a",
            limits=limits,
        )

    @classmethod
    async def started(cls, **settings: Any) -> "Replica":
        """One that serves."""
        replica = cls(**settings)
        await replica.supervisor.start()
        return replica

    @property
    def gang(self) -> ScriptedGang:
        """The latest gang."""
        return self.gangs[-1]

    def submit(
        self,
        client: int,
        request_id: int,
        *,
        n: int = 1,
        prompt_len: int = 3,
        is_own: bool = False,
        terms: Terms = ORDINARY_TERMS,
    ) -> Verdict:
        """Hand in a request that goes on until an output or an abort ends it."""
        request = Request(
            request_id=request_id,
            prompt=int32([1] * prompt_len),
            sampling=SamplingParams(max_tokens=50, n=n),
            terms=terms,
        )
        data = REQUESTS.encode(request)
        return VERDICTS.decode(self.supervisor.submit(client, data, is_own=is_own))

    def read(self, client: int) -> StreamReader:
        """Attach a client."""
        return StreamReader(self.supervisor.attach(client))

    def commands(self) -> list[EngineCommand]:
        """What the scheduler has received since the last call."""
        commands = []
        while (message := self.gang.scheduler.try_recv()) is not None:
            commands.append(COMMANDS.decode(message))
        return commands

    async def step(self, *rows: Row, **changes: Any) -> None:
        """Have the scheduler send the output of a step."""
        output = replace(tokens_output(list(rows)), **changes)
        self.gang.scheduler.send(OUTPUTS.encode(output))
        await settle()

    async def close(self) -> None:
        """End the replica as its process would."""
        await self.supervisor.close()

    async def _start(self) -> Gang:
        await self.starting.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.gangs.append(ScriptedGang())
        return self.gang

    async def _make_ready(self, supervisor: Supervisor, is_first: bool) -> None:
        await self.making_ready.wait()
        self.made_ready.append(is_first)
