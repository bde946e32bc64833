"""What a rank does for as long as it serves: plans come in through a channel, answers go out."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NoReturn

from engine.errors import InvariantViolated
from engine.executor.channel import Channel, ChannelClosed
from engine.executor.gang import PLANS, REPLIES, RankReply, reply_to
from engine.executor.rank_worker import RankWorker
from engine.types import StepPlan, StepResult

logger = logging.getLogger(__name__)


def serve_plans(worker: RankWorker, channel: Channel, *, is_first: bool) -> None:
    """Execute plans in the order of arrival until the channel ends, then close both.

    A second thread waits for the results and sends them, so that the next plan reaches the device
    while it still works on the one before. A failure is reported through the channel and ends it:
    after it, rows and blocks of this rank may no longer match those of the scheduler.

    Args:
        is_first: whether the results are sent; other ranks answer with checksums only.
    """
    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers") as answers:
            while True:
                message = channel.recv()
                arrived_s = time.perf_counter()
                plan = PLANS.decode(message)
                wait = _enqueue(worker, plan)
                reply = partial(
                    reply_to,
                    message,
                    with_result=is_first,
                    enqueue_s=time.perf_counter() - arrived_s,
                )
                # in order: a plan that failed at once is answered after those before it, too
                answers.submit(_answer, channel, plan.step, wait, reply)
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


def _raise(error: Exception) -> NoReturn:
    raise error


def _answer(
    channel: Channel,
    step: int,
    wait: Callable[[], StepResult],
    reply_with: Callable[[StepResult], RankReply],
) -> None:
    """Wait for the result of a plan and send it; after a failure the channel is closed."""
    try:
        reply = reply_with(wait())
    except Exception as error:  # process border: the scheduler must get any failure as an answer
        logger.exception("step_failed step=%d", step)
        reply = RankReply(step=step, error=f"{type(error).__name__}: {error}")
    # if the scheduler is gone, no one needs the answer
    with suppress(ChannelClosed):
        channel.send(REPLIES.encode(reply))
    if reply.error:
        channel.close()
