"""The process of one rank: loads a worker and executes the plans that come through a channel."""

import gc
import importlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from engine.config import EngineConfig
from engine.errors import InvariantViolated
from engine.executor.channel import Channel, ChannelClosed, Listener
from engine.executor.gang import PLANS, REPLIES, Reply
from engine.types import Capacity, StepPlan, StepResult

logger = logging.getLogger(__name__)

ACCEPT_TIMEOUT_S = 60.0


class Pending(Protocol):
    """A step that is under way, see `engine.worker.report.PendingStep`."""

    def result(self) -> StepResult: ...


class Worker(Protocol):
    """One rank's model and KV pool, see `engine.worker.worker.Worker`."""

    capacity: Capacity

    def enqueue(self, plan: StepPlan) -> Pending: ...

    def close(self) -> None: ...


class RankActor:
    """Hosts one worker. Everything that touches the model runs on one thread of its own.

    Meant to be a Ray actor with at least three concurrent calls: `load`, `loaded_bytes` and `ping`
    overlap.
    """

    def __init__(
        self, config: EngineConfig, rank: int, rendezvous: str | None, factory: str
    ) -> None:
        """Name the worker without loading it.

        Args:
            rendezvous: where the ranks find each other; None for a single rank.
            factory: "module:function", called like `engine.worker.worker.load_worker`.
        """
        self._config = config
        self._rank = rank
        self._rendezvous = rendezvous
        self._factory = factory
        self._worker: Worker | None = None
        self._listener: Listener | None = None
        self._model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._loaded_bytes = (0, 0)

    def load(self) -> Capacity:
        """Load the weights and make the KV pool."""
        self._worker = self._model_thread.submit(self._make_worker).result()
        return self._worker.capacity

    def loaded_bytes(self) -> tuple[int, int]:
        """How far `load` is: bytes of weights done and in total."""
        return self._loaded_bytes

    def ping(self) -> None:
        """Answer as long as the process lives."""

    def listen(self, path: str) -> None:
        """Make the socket file on which the scheduler is expected."""
        self._listener = Listener(path)

    def serve(self) -> None:
        """Accept the scheduler and begin to execute its plans."""
        assert self._worker is not None, "load comes first"
        assert self._listener is not None, "listen comes first"
        channel = self._listener.accept(ACCEPT_TIMEOUT_S)
        is_first = self._rank == 0
        self._model_thread.submit(serve_plans, self._worker, channel, is_first=is_first)

    def _make_worker(self) -> Worker:
        module, _, function = self._factory.partition(":")
        make = cast("Callable[..., Worker]", getattr(importlib.import_module(module), function))
        worker = make(
            self._config,
            rank=self._rank,
            rendezvous=self._rendezvous,
            on_progress=self._note_progress,
        )
        # weights and code live as long as the process: the collector need not look at them again
        gc.freeze()
        return worker

    def _note_progress(self, done_bytes: int, total_bytes: int) -> None:
        self._loaded_bytes = done_bytes, total_bytes


def serve_plans(worker: Worker, channel: Channel, *, is_first: bool) -> None:
    """Execute plans in the order of arrival until the channel ends, then close both.

    Results are awaited and sent by a thread of their own, so that the next plan reaches the device
    while it still works on the one before. A failure is reported through the channel and ends it:
    after it, the rows and blocks of this rank can no longer be trusted to match the scheduler's.

    Args:
        is_first: send results back; other ranks only acknowledge.
    """
    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers") as answers:
            while True:
                plan = PLANS.decode(channel.recv())
                # a plan that cannot be executed is answered after those before it, too
                answers.submit(_answer, channel, plan.step, _enqueue(worker, plan), is_first)
    except ChannelClosed as closed:
        logger.info("channel_closed reason=%s", closed)
    except InvariantViolated as error:
        # whoever sent that is no scheduler that an answer could reach
        logger.error("bad_plan reason=%s", error)
    finally:
        channel.close()
        worker.close()


@dataclass(frozen=True, slots=True)
class _Failed:
    """A step that could not even begin."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error


def _enqueue(worker: Worker, plan: StepPlan) -> Pending:
    try:
        return worker.enqueue(plan)
    except Exception as error:  # the border of the process: the scheduler must hear of any failure
        return _Failed(error)


def _answer(channel: Channel, step: int, pending: Pending, is_first: bool) -> None:
    """Send a result when it is there; after a failure there are no more."""
    try:
        result = pending.result()
        reply = Reply(step=step, result=result if is_first else None)
    except Exception as error:  # the border of the process: the scheduler must hear of any failure
        logger.exception("step_failed step=%d", step)
        reply = Reply(step=step, error=f"{type(error).__name__}: {error}")
    # without a scheduler there is nobody to tell
    with suppress(ChannelClosed):
        channel.send(REPLIES.encode(reply))
    if reply.error:
        channel.close()
