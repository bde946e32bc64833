"""The engine loop: take commands, make a step, send its output. Has a thread to itself."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from engine.core.engine import Engine
from engine.core.scheduler import Scheduler
from engine.errors import EngineError, RequestError
from engine.executor.channel import Channel
from engine.runtime.messages import (
    COMMANDS,
    OUTPUTS,
    SNAPSHOTS,
    EngineCommand,
    EngineQuestion,
    refusal_of,
)
from engine.runtime.outputs import failure, idle_stats
from engine.types import Capacity, Request, StepOutput, StepStats

logger = logging.getLogger(__name__)


def run_engine(
    engine: Engine,
    channel: Channel,
    capacity: Capacity,
    clock: Callable[[], float],
    *,
    hold: Callable[[], bool] = lambda: True,
) -> None:
    """Drive an engine by the commands of a replica until the channel ends; outputs go back by it.

    If the executor fails, a last output says why and ends what was in the batch by CRASHED; of
    the other open requests it says nothing.

    Args:
        clock: seconds; requests get their arrival from it.
        hold: waits until the next plan is due, and whether it is; see `LatePlans.hold`.

    Raises:
        ChannelClosed: when the replica is gone or has closed the channel.
        EngineError: if the executor fails; every open request is lost.
    """
    stats = idle_stats(capacity)
    while True:
        is_due = hold()
        for command in _commands(channel, wait=not engine.has_work):
            answer = _carry_out(engine.scheduler, command, clock, stats)
            if answer is not None:
                channel.send(OUTPUTS.encode(answer))
        output = _step(engine, channel, clock) if is_due else None
        if output is not None:
            stats = output.stats
            channel.send(OUTPUTS.encode(output))


def _commands(channel: Channel, *, wait: bool) -> Iterator[EngineCommand]:
    """Yield all that have arrived; with nothing else to do, `wait` until one does."""
    message = channel.recv() if wait else channel.try_recv()
    while message is not None:
        yield COMMANDS.decode(message)
        message = channel.try_recv()


def _step(engine: Engine, channel: Channel, clock: Callable[[], float]) -> StepOutput | None:
    try:
        return engine.step(clock())
    except EngineError as error:
        crashed = replace(engine.crash(clock()), failure=str(error))
        channel.send(OUTPUTS.encode(crashed))
        raise


def _carry_out(
    scheduler: Scheduler, command: EngineCommand, clock: Callable[[], float], stats: StepStats
) -> StepOutput | None:
    """Carry a command out; returns a snapshot, or the end of a request that is refused."""
    if isinstance(command, Request):
        return _add(scheduler, command, clock, stats)
    if isinstance(command, EngineQuestion):
        snapshot = SNAPSHOTS.encode(scheduler.snapshot(clock()))
        return StepOutput(step=-1, stats=stats, snapshot=snapshot)
    for request_id, choice in zip(command.request_ids, command.choices, strict=True):
        scheduler.abort(request_id, choice)
    for salt, name in command.prefixes:
        scheduler.release_prefix(salt, name)
    return None


def _add(
    scheduler: Scheduler, request: Request, clock: Callable[[], float], stats: StepStats
) -> StepOutput | None:
    age_s = request.progress.age_s if request.progress is not None else 0.0
    try:
        scheduler.add(replace(request, arrival_s=clock() - age_s))
    except RequestError as error:
        # the replica's admission has accepted what the core refuses; only this request fails
        logger.warning("request_refused request_id=%d reason=%s", request.request_id, error)
        choices = [(request.request_id, choice) for choice in range(request.sampling.n)]
        return failure(choices, stats, refusal_of(error))
    return None
