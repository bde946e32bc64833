"""The engine loop: take commands, make a step, send its output. Has a thread to itself."""

import logging
from collections.abc import Callable
from dataclasses import replace

from engine.core.engine import Engine
from engine.errors import EngineError, RequestError
from engine.executor.channel import Channel
from engine.runtime.messages import COMMANDS, OUTPUTS, EngineCommand, refusal_of
from engine.runtime.outputs import failure, idle_stats
from engine.types import Capacity, Request, StepOutput

logger = logging.getLogger(__name__)


class EngineLoop:
    """Drives an engine by the commands of a replica; outputs go back over the same channel."""

    def __init__(
        self, engine: Engine, channel: Channel, capacity: Capacity, clock: Callable[[], float]
    ) -> None:
        """Args: clock: seconds; requests get their arrival from it."""
        self._engine = engine
        self._channel = channel
        self._clock = clock
        self._stats = idle_stats(capacity)

    def run(self) -> None:
        """Loop until the channel ends.

        If the executor fails, a last output says why and ends what was in the batch by CRASHED; of
        the other open requests it says nothing.

        Raises:
            ChannelClosed: when the replica is gone or has closed the channel.
            EngineError: if the executor fails; every open request is lost.
        """
        while True:
            self._take_commands()
            output = self._step()
            if output is not None:
                self._stats = output.stats
                self._send(output)

    def _step(self) -> StepOutput | None:
        try:
            return self._engine.step(self._clock())
        except EngineError as error:
            self._send(replace(self._engine.crash(self._clock()), failure=str(error)))
            raise

    def _take_commands(self) -> None:
        """Take all that have arrived; with nothing else to do, sleep until one does."""
        message = self._channel.try_recv() if self._engine.has_work else self._channel.recv()
        while message is not None:
            self._carry_out(COMMANDS.decode(message))
            message = self._channel.try_recv()

    def _carry_out(self, command: EngineCommand) -> None:
        if isinstance(command, Request):
            self._add(command)
            return
        for request_id, choice in zip(command.request_ids, command.choices, strict=True):
            self._engine.scheduler.abort(request_id, choice)
        for salt, name in command.prefixes:
            self._engine.scheduler.release_prefix(salt, name)

    def _add(self, request: Request) -> None:
        age_s = request.progress.age_s if request.progress is not None else 0.0
        try:
            self._engine.scheduler.add(replace(request, arrival_s=self._clock() - age_s))
        except RequestError as error:
            # the replica's admission has accepted what the core refuses; only this request fails
            logger.warning("request_refused request_id=%d reason=%s", request.request_id, error)
            choices = [(request.request_id, choice) for choice in range(request.sampling.n)]
            self._send(failure(choices, self._stats, refusal_of(error)))

    def _send(self, output: StepOutput) -> None:
        self._channel.send(OUTPUTS.encode(output))
