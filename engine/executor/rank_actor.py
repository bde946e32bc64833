"""The process of one rank: loads a worker and executes the plans that come through a channel.

Three threads take part: one of Ray for the calls, one that holds the model and enqueues plans, one
that waits for results and answers.
"""

import gc
import importlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray import ObjectRef
from ray.exceptions import RayError

from engine.config import EngineConfig
from engine.errors import InvariantViolated
from engine.executor.channel import Channel, ChannelClosed, Listener
from engine.executor.gang import PLANS, REPLIES
from engine.executor.rank_worker import RankWorker
from engine.types import Capacity, StepPlan, StepResult

logger = logging.getLogger(__name__)

ACCEPT_TIMEOUT_S = 60.0
_ARENA_TIMEOUT_S = 60.0


class RankActor:
    """A Ray actor that hosts one worker. Everything that touches the model runs on one thread.

    It needs at least three concurrent calls: `load`, `loaded_bytes` and `ping` overlap. A gang that
    starts calls `load`, `listen` and `serve`, in this order.
    """

    def __init__(
        self, config: EngineConfig, rank: int, rendezvous: str | None, factory: str
    ) -> None:
        """Note which worker to load.

        Args:
            rendezvous: where the ranks find each other; None for a single rank.
            factory: "module:function", called like `engine.worker.worker.load_worker`.
        """
        self._config = config
        self._rank = rank
        self._rendezvous = rendezvous
        self._factory = factory
        self._worker: RankWorker | None = None
        self._listener: Listener | None = None
        self._model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._loaded_bytes = (0, 0)

    def load(self, arena: Sequence[ObjectRef[Any]] | None = None) -> Capacity:
        """Load the weights and make the KV pool.

        Args:
            arena: one object that is memory for the swap space, or none: then there is no swap
                space. Without this the worker allocates what the configuration says.
        """
        self._worker = self._model_thread.submit(self._make_worker, arena).result()
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

    def _make_worker(self, arena: Sequence[ObjectRef[Any]] | None) -> RankWorker:
        module, _, function = self._factory.partition(":")
        make = cast("Callable[..., RankWorker]", getattr(importlib.import_module(module), function))
        config, options = self._config, {}
        view = _view_of(arena) if arena else None
        if view is not None:
            options = {"swap_view": view}
        elif arena is not None:
            config = config.with_options(swap_bytes=0)
        worker = make(
            config,
            rank=self._rank,
            rendezvous=self._rendezvous,
            on_progress=self._note_progress,
            **options,
        )
        # all objects of now live as long as the process: the garbage collector need not visit them
        gc.freeze()
        return worker

    def _note_progress(self, done_bytes: int, total_bytes: int) -> None:
        self._loaded_bytes = done_bytes, total_bytes


def _view_of(arena: Sequence[ObjectRef[Any]]) -> NDArray[np.uint8] | None:
    """The memory of an arena; None if it is lost, which costs recomputation only."""
    [ref] = arena
    try:
        view: NDArray[np.uint8] = ray.get(ref, timeout=_ARENA_TIMEOUT_S)
    except RayError as error:
        logger.warning("no_swap_space reason=%s: preempted requests are recomputed", error)
        return None
    return view


def serve_plans(worker: RankWorker, channel: Channel, *, is_first: bool) -> None:
    """Execute plans in the order of arrival until the channel ends, then close both.

    A second thread waits for the results and sends them, so that the next plan reaches the device
    while it still works on the one before. A failure is reported through the channel and ends it:
    after it, rows and blocks of this rank may no longer match those of the scheduler.

    Args:
        is_first: whether the results are sent; other ranks only acknowledge.
    """
    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers") as answers:
            while True:
                plan = PLANS.decode(channel.recv())
                wait = _enqueue(worker, plan)
                # in order: a plan that failed at once is answered after those before it, too
                answers.submit(_answer, channel, plan.step, wait, is_first)
    except ChannelClosed as closed:
        logger.info("channel_closed reason=%s", closed)
    except InvariantViolated as error:
        # the peer is no scheduler: it would not understand an answer
        logger.error("bad_plan reason=%s", error)
    finally:
        channel.close()
        worker.close()


def _enqueue(worker: RankWorker, plan: StepPlan) -> Callable[[], StepResult]:
    """Hand a plan to the device; returns what waits for its result or raises its error."""
    try:
        return worker.enqueue(plan).result
    except Exception as error:  # process border: the scheduler must get any failure as an answer
        return partial(_raise, error)


def _acknowledge(result: StepResult) -> StepResult | int:
    """What a rank answers whose tokens are those of the first one."""
    if not result.spoiled_slots:
        return result.step
    return StepResult(step=result.step, spoiled_slots=result.spoiled_slots)


def _raise(error: Exception) -> NoReturn:
    raise error


def _answer(channel: Channel, step: int, wait: Callable[[], StepResult], is_first: bool) -> None:
    """Wait for a result and send it; after a failure the channel is closed."""
    reply: StepResult | int | str
    try:
        result = wait()
        # what a rank did not find in its swap space all must know
        reply = result if is_first else _acknowledge(result)
    except Exception as error:  # process border: the scheduler must get any failure as an answer
        logger.exception("step_failed step=%d", step)
        reply = f"step {step}: {type(error).__name__}: {error}"
    # if the scheduler is gone, no one needs the answer
    with suppress(ChannelClosed):
        channel.send(REPLIES.encode(reply))
    if isinstance(reply, str):
        channel.close()
