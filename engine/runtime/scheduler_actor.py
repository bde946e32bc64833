"""The process of the scheduler: the engine's core in its loop, without torch.

It is a process of its own because the step loop must share its interpreter neither with the event
loop of the replica nor with a model.
"""

import gc
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial

from engine.config import SchedulerConfig
from engine.core.engine import Engine, EngineClock
from engine.errors import EngineError
from engine.executor.channel import Channel, ChannelClosed, connect
from engine.executor.gang import GangExecutor
from engine.executor.process_id import ProcessId, own_process_id
from engine.executor.process_log import log_from_actor
from engine.executor.tcp_channel import connect_to
from engine.runtime.late_plans import LatePlans
from engine.runtime.loop import run_engine
from engine.types import Capacity

logger = logging.getLogger(__name__)


class SchedulerActor:
    """A Ray actor that runs the engine loop on a thread beside that of its calls.

    A failure of the loop ends the process: the replica sees the channel close, after the loop's
    last output if the ranks are what failed, and has the gang started again.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        run_ahead: int,
        step_deadline_s: float,
        late_plans: bool = False,
    ) -> None:
        log_from_actor("scheduler")
        self._config = config
        self._run_ahead = run_ahead
        self._step_deadline_s = step_deadline_s
        self._late_plans = late_plans

    def start(
        self,
        capacity: Capacity,
        rank_addresses: Sequence[str],
        replica_path: str,
        secret: bytes = b"",
    ) -> None:
        """Connect to the ranks (rank 0 first) and to the replica, then run.

        Args:
            rank_addresses, secret: see `connect_to`.

        Raises:
            ChannelClosed: if one of them does not listen, or does not know the secret.
        """
        executor = GangExecutor(
            [connect_to(address, secret) for address in rank_addresses],
            capacity,
            run_ahead=self._run_ahead,
            step_deadline_s=self._step_deadline_s,
        )
        channel = connect(replica_path)
        clock = EngineClock()
        engine = Engine(self._config, executor, clock=clock)
        run = partial(run_engine, engine, channel, capacity, clock.now_s)
        if self._late_plans:
            late = LatePlans(engine.scheduler, executor, channel, clock.now_s)
            run = partial(run, hold=late.hold)
        # all objects of now live as long as the process: the garbage collector need not visit them
        gc.freeze()
        threading.Thread(target=_run, args=(run, executor, channel), name="engine").start()

    def ping(self) -> None:
        """Answer as long as the process lives."""

    def process_id(self) -> ProcessId:
        """The process that this actor is."""
        return own_process_id()


def _run(run: Callable[[], None], executor: GangExecutor, channel: Channel) -> None:
    try:
        run()
    except ChannelClosed:
        # the replica kills this process next, or has died, and its actors with it
        logger.info("replica_gone")
        executor.close()
    except EngineError as error:
        logger.error("engine_loop_failed reason=%s", error)
        _exit(channel)
    except Exception:  # process border: whatever it is, every open request is lost
        logger.exception("engine_loop_failed")
        _exit(channel)
    finally:
        channel.close()


def _exit(channel: Channel) -> None:
    # commands that were not read would reset the connection, and the last output with it
    channel.close()
    os._exit(1)
