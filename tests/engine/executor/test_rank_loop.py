"""What comes of plans that reach a rank through its channel, in the process of the test."""

import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass

import pytest

from engine.errors import EngineError
from engine.executor.channel import Channel, ChannelClosed
from engine.executor.gang import PLANS, REPLIES, GangExecutor, RankReply
from engine.executor.rank_loop import serve_plans
from engine.types import StepPlan, StepResult
from tests.channels import channel_pair
from tests.engine.executor.ranks import CAPACITY, FIRST_TOKEN, Recorder, prefill, reply_of
from tests.fakes import scripted_worker as scripted


def _serve(worker: Recorder, *steps: int, is_first: bool = True) -> list[RankReply]:
    """Serve plans that have all come already, to the end of the channel; what was answered."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near = Channel(left)
    for step in steps:
        near.send(PLANS.encode(prefill(step)))
    # the rank sees the end behind the plans, and its answers can still be read
    left.shutdown(socket.SHUT_WR)
    with closing(near), closing(Channel(right)) as far:
        serve_plans(worker, far, is_first=is_first)
        replies = []
        with suppress(ChannelClosed):
            while True:
                replies.append(REPLIES.decode(near.recv()))
        return replies


def test_plans_are_executed_and_answered_in_their_order() -> None:
    worker = Recorder()
    replies = _serve(worker, 3, 1, 2)
    assert worker.steps == [3, 1, 2]
    assert replies == [reply_of(step) for step in (3, 1, 2)]


def test_the_worker_is_closed_behind_the_last_plan() -> None:
    worker = Recorder()
    _serve(worker, 0)
    assert worker.is_closed


def test_ranks_but_the_first_answer_without_a_result() -> None:
    replies = _serve(Recorder(), 0, 1, is_first=False)
    assert replies == [reply_of(0, is_first=False), reply_of(1, is_first=False)]
    assert replies[0].result is None
    assert replies[0].result_checksum == reply_of(0).result_checksum != reply_of(1).result_checksum


def test_a_rank_says_how_long_it_took_to_take_a_plan() -> None:
    [reply] = _serve(Recorder(), 0)
    assert reply.enqueue_s > 0


def test_any_rank_says_which_slots_are_spoiled() -> None:
    for is_first in (True, False):
        [reply] = _serve(Recorder(spoiled_slots=(3,)), 0, is_first=is_first)
        assert list(reply.spoiled_slots) == [3]
        # the tokens are compared as ever: they come out of all ranks together
        assert reply.result_checksum == reply_of(0).result_checksum


@pytest.mark.parametrize(
    ("worker", "error"),
    [
        (Recorder(fails_in=(1,)), "ValueError: lost step 1"),
        (Recorder(cannot_begin=(1,)), "ValueError: no step 1"),
    ],
)
def test_a_failure_is_the_last_answer(worker: Recorder, error: str) -> None:
    first, last = _serve(worker, 0, 1, 2)
    assert first == reply_of(0)
    assert last == RankReply(step=1, error=error)
    assert worker.is_closed


def test_a_failed_step_is_reported_and_ends_the_rank() -> None:
    near, far = channel_pair()
    worker = scripted.ScriptedWorker(scripted.engine_config(), step_s=0.0)
    thread = threading.Thread(target=serve_plans, args=(worker, far), kwargs={"is_first": True})
    thread.start()
    executor = GangExecutor([near], CAPACITY, run_ahead=2, step_deadline_s=30.0)
    executor.submit(prefill(0))
    assert executor.collect().tokens.tolist() == FIRST_TOKEN
    executor.submit(prefill(1, scripted.FAIL))
    with pytest.raises(EngineError, match="ValueError: scripted failure"):
        executor.collect()
    thread.join(10)
    assert not thread.is_alive()
    executor.close()


class _WaitingWorker:
    """Finishes a step only when the next one has come."""

    capacity = CAPACITY

    def __init__(self) -> None:
        self._enqueued = [threading.Event() for _ in range(3)]

    def enqueue(self, plan: StepPlan) -> "_Waiting":
        self._enqueued[plan.step].set()
        # nobody follows the last one
        return _Waiting(plan.step, self._enqueued[min(plan.step + 1, 2)])

    def close(self) -> None:
        pass


@dataclass
class _Waiting:
    step: int
    follower: threading.Event

    def result(self) -> StepResult:
        assert self.follower.wait(10)
        return StepResult(step=self.step)


def test_a_rank_takes_the_next_plan_while_it_waits_for_a_result() -> None:
    near, far = channel_pair()
    arguments = {"is_first": True}
    thread = threading.Thread(target=serve_plans, args=(_WaitingWorker(), far), kwargs=arguments)
    thread.start()
    executor = GangExecutor([near], CAPACITY, run_ahead=2, step_deadline_s=30.0)
    for step in range(2):
        executor.submit(prefill(step))
    assert executor.collect().step == 0
    executor.submit(prefill(2))
    assert executor.collect().step == 1
    executor.close()
    thread.join(10)
    assert not thread.is_alive()


def test_junk_instead_of_a_plan_ends_the_rank(caplog: pytest.LogCaptureFixture) -> None:
    near, far = channel_pair()
    worker = scripted.ScriptedWorker(scripted.engine_config(), step_s=0.0)
    thread = threading.Thread(target=serve_plans, args=(worker, far), kwargs={"is_first": True})
    thread.start()
    near.send(b"junk")
    with pytest.raises(ChannelClosed):
        near.recv()
    thread.join(10)
    assert not thread.is_alive()
    assert "bad_plan reason=not a StepPlan message" in caplog.text
    near.close()
