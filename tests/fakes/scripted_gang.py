"""A replica without processes: the test answers for the scheduler, at the channel's other end."""

from dataclasses import replace
from typing import Any

from ray.exceptions import RayActorError

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
from engine.types import Capacity, Request, SamplingParams, int32
from tests.channels import channel_pair
from tests.fakes.engine_handle import Row, tokens_output
from tests.fakes.loop_clock import settle
from tests.fakes.scripted_worker import engine_config
from tests.fakes.stream_reader import StreamReader

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)
STEP_DEADLINE_S = 2.0
LIMITS = ClientLimits(lease_s=5.0, idle_s=3.0, max_undelivered_bytes=1 << 20, coalesce_s=0.0)


class ScriptedGang(Gang):
    """Processes that live until the test says otherwise."""

    def __init__(self) -> None:
        self.channel, self.scheduler = channel_pair()
        self.capacity = CAPACITY
        self.is_dead = False
        self.num_pings = 0
        self.is_closed = False

    async def ping(self) -> None:
        self.num_pings += 1
        if self.is_dead:
            raise RayActorError

    def close(self) -> None:
        self.is_closed = True


class Replica:
    """A supervisor, and what a scheduler would receive from it and send to it."""

    def __init__(self, *, limits: ClientLimits = LIMITS, max_num_waiting: int = 1024) -> None:
        self.gang = ScriptedGang()
        self.supervisor = Supervisor(
            self.gang,
            engine_config(max_num_waiting=max_num_waiting),
            replica="a",
            step_deadline_s=STEP_DEADLINE_S,
            limits=limits,
        )

    def submit(self, client: int, request_id: int, *, n: int = 1, prompt_len: int = 3) -> Verdict:
        """Hand in a request that goes on until an output or an abort ends it."""
        request = Request(
            request_id=request_id,
            prompt=int32([1] * prompt_len),
            sampling=SamplingParams(max_tokens=50, n=n),
        )
        return VERDICTS.decode(self.supervisor.submit(client, REQUESTS.encode(request)))

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

    def close(self) -> None:
        """End the replica as its process would."""
        self.supervisor.close()
        self.gang.scheduler.close()
