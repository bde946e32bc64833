import os
import signal
import threading
from array import array
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, InvariantViolated, WorkerDied
from engine.executor.channel import Channel, ChannelClosed, connect
from engine.executor.gang import PLANS, REPLIES, GangExecutor, Reply
from engine.executor.rank_actor import RankActor, serve_plans
from engine.types import Capacity, RowAdmission, SamplingParams, StepPlan, StepResult, int32
from tests.channels import channel_pair
from tests.fakes import scripted_worker as scripted

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)
FIRST_TOKEN = scripted.continuation([5], 1)


def prefill(step: int, token: int = 5) -> StepPlan:
    return StepPlan(
        step=step,
        releases=int32([0] if step else []),
        admissions=(RowAdmission(row=0, sampling=SamplingParams(max_tokens=1)),),
        append_rows=int32([0]),
        append_indices=int32([0]),
        append_blocks=int32([3]),
        prefill_rows=int32([0]),
        prefill_starts=int32([0]),
        prefill_counts=int32([1]),
        prefill_samples=array("b", [1]),
        prefill_tokens=int32([token]),
    )


class Ranks:
    """Two ranks' ends of a gang's channels, played by the test."""

    def __init__(self, deadline_s: float = 30.0) -> None:
        pairs = [channel_pair() for _ in range(2)]
        self.ends: list[Channel] = [far for _, far in pairs]
        self.executor = GangExecutor(
            [near for near, _ in pairs], CAPACITY, run_ahead=2, step_deadline_s=deadline_s
        )

    def reply(self, rank: int, step: int, *, error: str = "") -> None:
        result = StepResult(step=step) if rank == 0 and not error else None
        self.ends[rank].send(REPLIES.encode(Reply(step=step, result=result, error=error)))

    def close(self) -> None:
        self.executor.close()
        for end in self.ends:
            end.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


def test_every_rank_gets_the_same_plan(ranks: Ranks) -> None:
    plan = prefill(0)
    ranks.executor.submit(plan)
    assert [PLANS.decode(end.recv()) for end in ranks.ends] == [plan, plan]


def test_results_come_in_order_when_one_rank_runs_ahead(ranks: Ranks) -> None:
    for step in range(2):
        ranks.executor.submit(prefill(step))
    for rank in (0, 1):
        for step in range(2):
            ranks.reply(rank, step)
    assert [ranks.executor.collect().step for _ in range(2)] == [0, 1]


def test_a_rank_that_ends_while_another_is_awaited_is_noticed_at_once(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.ends[1].close()
    with pytest.raises(WorkerDied, match="rank 1"):
        ranks.executor.collect()
    with pytest.raises(WorkerDied, match="rank 1"):
        ranks.executor.submit(prefill(1))


def test_a_failure_names_its_rank_and_text(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.reply(1, 0, error="ValueError: bad block")
    with pytest.raises(EngineError, match=r"rank 1 failed in step 0: ValueError: bad block"):
        ranks.executor.collect()


def test_an_answer_to_another_step_is_an_invariant_violation(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.reply(0, 0)
    ranks.reply(1, 7)
    with pytest.raises(InvariantViolated, match=r"\[0, 7\]"):
        ranks.executor.collect()


def test_a_late_rank_counts_as_dead() -> None:
    ranks = Ranks(deadline_s=0.01)
    ranks.executor.submit(prefill(0))
    ranks.reply(0, 0)
    with pytest.raises(WorkerDied, match=r"ranks \[1\] did not answer step 0"):
        ranks.executor.collect()
    ranks.close()


def test_a_failed_step_is_reported_and_ends_the_rank() -> None:
    near, far = channel_pair()
    worker = scripted.ScriptedWorker(scripted.engine_config(), step_s=0.0)
    thread = threading.Thread(target=serve_plans, args=(worker, far), kwargs={"is_first": True})
    thread.start()
    executor = GangExecutor([near], CAPACITY, run_ahead=2)
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
    executor = GangExecutor([near], CAPACITY, run_ahead=2)
    for step in range(2):
        executor.submit(prefill(step))
    assert executor.collect().step == 0
    executor.submit(prefill(2))
    assert executor.collect().step == 1
    executor.close()
    thread.join(10)
    assert not thread.is_alive()


def test_junk_from_a_rank_is_an_error_of_the_engine(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.ends[1].send(b"junk")
    with pytest.raises(InvariantViolated, match="not a Reply"):
        ranks.executor.collect()


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
    executor = GangExecutor([connect(path) for path in paths], CAPACITY, run_ahead=2)
    with closing(executor):
        ray.get([actor.serve.remote() for actor in rank_actors])
        assert [execute(executor, prefill(step)) for step in range(2)] == [FIRST_TOKEN] * 2

        pid = ray.get(rank_actors[1].__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        # the death shows when the plan is sent or when its answer is awaited, as it happens
        with pytest.raises(WorkerDied, match="rank 1"):
            execute(executor, prefill(2))
