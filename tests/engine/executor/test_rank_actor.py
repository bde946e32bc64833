"""The process of one rank: with a worker of the test, and as a Ray actor."""

import gc
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, WorkerDied
from engine.executor.channel import Channel, ChannelClosed, connect
from engine.executor.gang import PLANS, REPLIES, GangExecutor, RankReply, reply_to
from engine.executor.rank_actor import RankActor
from engine.executor.rank_loop import serve_plans
from engine.executor.tcp_channel import connect_to
from engine.types import Capacity, StepPlan, StepResult, int32
from tests.channels import channel_pair
from tests.engine.executor.ranks import CAPACITY, FIRST_TOKEN, prefill
from tests.fakes import scripted_worker as scripted


@dataclass
class _Recorder:
    """Notes what happens to it, and fails on demand.

    Attributes:
        fails_in: steps whose result does not come.
        cannot_begin: steps that are refused.
        spoiled_slots: of every step.
    """

    fails_in: tuple[int, ...] = ()
    cannot_begin: tuple[int, ...] = ()
    spoiled_slots: tuple[int, ...] = ()
    capacity: Capacity = CAPACITY
    steps: list[int] = field(default_factory=list)
    is_closed: bool = False

    def enqueue(self, plan: StepPlan) -> "_Recorded":
        self.steps.append(plan.step)
        if plan.step in self.cannot_begin:
            raise ValueError(f"no step {plan.step}")
        return _Recorded(plan.step, plan.step in self.fails_in, self.spoiled_slots)

    def close(self) -> None:
        self.is_closed = True


@dataclass(frozen=True)
class _Recorded:
    step: int
    fails: bool
    spoiled_slots: tuple[int, ...]

    def result(self) -> StepResult:
        if self.fails:
            raise ValueError(f"lost step {self.step}")
        return StepResult(
            step=self.step,
            tokens=int32([self.step + 40]),
            spoiled_slots=int32(self.spoiled_slots),
        )


def _serve(worker: _Recorder, *steps: int, is_first: bool = True) -> list[RankReply]:
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


def _reply(step: int, *, is_first: bool = True) -> RankReply:
    """What a rank answers to the plan of a step that a recorder has executed."""
    result = StepResult(step=step, tokens=int32([step + 40]))
    return reply_to(PLANS.encode(prefill(step)), result, with_result=is_first)


def test_plans_are_executed_and_answered_in_their_order() -> None:
    worker = _Recorder()
    replies = _serve(worker, 3, 1, 2)
    assert worker.steps == [3, 1, 2]
    assert replies == [_reply(step) for step in (3, 1, 2)]


def test_the_worker_is_closed_behind_the_last_plan() -> None:
    worker = _Recorder()
    _serve(worker, 0)
    assert worker.is_closed


def test_ranks_but_the_first_answer_without_a_result() -> None:
    replies = _serve(_Recorder(), 0, 1, is_first=False)
    assert replies == [_reply(0, is_first=False), _reply(1, is_first=False)]
    assert replies[0].result is None
    assert replies[0].result_checksum == _reply(0).result_checksum != _reply(1).result_checksum


def test_any_rank_says_which_slots_are_spoiled() -> None:
    for is_first in (True, False):
        [reply] = _serve(_Recorder(spoiled_slots=(3,)), 0, is_first=is_first)
        assert list(reply.spoiled_slots) == [3]
        # the tokens are compared as ever: they come out of all ranks together
        assert reply.result_checksum == _reply(0).result_checksum


@pytest.mark.parametrize(
    ("worker", "error"),
    [
        (_Recorder(fails_in=(1,)), "ValueError: lost step 1"),
        (_Recorder(cannot_begin=(1,)), "ValueError: no step 1"),
    ],
)
def test_a_failure_is_the_last_answer(worker: _Recorder, error: str) -> None:
    first, last = _serve(worker, 0, 1, 2)
    assert first == _reply(0)
    assert last == RankReply(step=1, error=error)
    assert worker.is_closed


@pytest.fixture
def _thawed() -> Iterator[None]:
    """Objects that an actor has frozen in its process are looked at again."""
    yield
    gc.unfreeze()


_made: list[tuple[int, str]] = []


def make_recorder(
    config: object, *, rank: int, rendezvous: str | None, on_progress: scripted.Progress
) -> _Recorder:
    """A worker factory of this module."""
    _made.append((rank, rendezvous or ""))
    on_progress(30, 40)
    return _Recorder()


@pytest.mark.usefixtures("_thawed")
def test_an_actor_loads_its_worker_when_it_is_asked_to() -> None:
    _made.clear()
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), 1, "file:///there", factory)
    assert (actor.loaded_bytes(), _made) == ((0, 0), [])
    assert actor.load() == CAPACITY
    assert _made == [(1, "file:///there")]
    assert actor.loaded_bytes() == (30, 40)


@pytest.mark.usefixtures("_thawed")
@pytest.mark.parametrize(("place", "expected"), [(None, 512), (0, 0), (2048, 2048)])
def test_the_swap_space_of_a_rank_is_what_it_is_told(place: int | None, expected: int) -> None:
    factory = "tests.fakes.scripted_worker:load_worker"
    config = scripted.engine_config(ranks=1).with_options(swap_bytes=512)
    capacity = RankActor(config, 0, None, factory).load(place)
    assert capacity.num_swap_blocks == expected // config.block_bytes


@pytest.mark.usefixtures("_thawed")
@pytest.mark.parametrize("rank", [0, 1])
def test_an_actor_serves_on_the_socket_that_it_listens_on(tmp_path: Path, rank: int) -> None:
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), rank, None, factory)
    actor.load()
    actor.listen(str(tmp_path / "s"))
    with closing(connect(str(tmp_path / "s"))) as near:
        actor.serve()
        near.send(PLANS.encode(prefill(2)))
        reply = REPLIES.decode(near.recv())
    # only rank 0 sends its results
    assert reply == _reply(2, is_first=rank == 0)


@pytest.mark.usefixtures("_thawed")
def test_an_actor_serves_a_scheduler_of_another_node() -> None:
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), 1, None, factory)
    actor.load()
    url = actor.listen_on_node("127.0.0.1", b"secret")
    with pytest.raises(ChannelClosed, match="secret"):
        connect_to(url, b"another")
    with closing(connect_to(url, b"secret")) as near:
        actor.serve()
        near.send(PLANS.encode(prefill(2)))
        assert REPLIES.decode(near.recv()) == _reply(2, is_first=False)


@pytest.mark.usefixtures("_thawed")
def test_ranks_of_several_nodes_meet_at_the_first_one() -> None:
    _made.clear()
    factory = f"{__name__}:{make_recorder.__name__}"
    first, second = (RankActor(scripted.engine_config(), rank, None, factory) for rank in (0, 1))
    url = first.open_meeting("127.0.0.1", "name")
    second.meet(url)
    for actor in (first, second):
        actor.load()
    (_, kept), (_, met) = _made
    assert url == met
    assert met.startswith("tcp://127.0.0.1:")
    assert met.endswith("/name")
    listener = int(kept.removeprefix(f"{url}?listener="))
    with socket.socket(fileno=os.dup(listener)) as listening:
        assert met == f"tcp://127.0.0.1:{listening.getsockname()[1]}/name"
    # port and rendezvous last as long as the actor
    assert first._meeting is not None
    first._meeting.close()


@pytest.mark.usefixtures("_thawed")
def test_an_actor_finds_the_model_of_its_own_node() -> None:
    factory = f"{__name__}:{make_recorder.__name__}"
    actor = RankActor(scripted.engine_config(), 0, None, factory)
    actor.locate_by(lambda: Path("/mnt/models/tiny"))
    actor.load()
    assert actor._config.model_path == "/mnt/models/tiny"


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


@pytest.fixture
def rank_actors(ray_cluster: None) -> Iterator[list[Any]]:
    import ray

    config = scripted.engine_config()
    actors: list[Any] = [
        ray.remote(RankActor)
        .options(num_cpus=0, max_concurrency=4)
        .remote(config, rank, "file:///unused", "tests.fakes.scripted_worker:load_worker")
        for rank in range(2)
    ]
    yield actors
    for actor in actors:
        ray.kill(actor)


def execute(executor: GangExecutor, plan: StepPlan) -> list[int]:
    executor.submit(plan)
    return executor.collect().tokens.tolist()


@pytest.mark.ray
def test_two_rank_processes_execute_plans_until_one_is_killed(
    rank_actors: list[Any], tmp_path: Path
) -> None:
    import ray

    assert ray.get([actor.load.remote() for actor in rank_actors]) == [CAPACITY, CAPACITY]
    paths = [str(tmp_path / str(rank)) for rank in range(2)]
    ray.get([actor.listen.remote(path) for actor, path in zip(rank_actors, paths, strict=True)])
    executor = GangExecutor(
        [connect(path) for path in paths], CAPACITY, run_ahead=2, step_deadline_s=30.0
    )
    with closing(executor):
        ray.get([actor.serve.remote() for actor in rank_actors])
        assert [execute(executor, prefill(step)) for step in range(2)] == [FIRST_TOKEN] * 2

        pid = ray.get(rank_actors[1].__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        # the death shows when the plan is sent or when its answer is awaited, as it happens
        with pytest.raises(WorkerDied, match="rank 1"):
            execute(executor, prefill(2))
