"""A gang's side of the channels to its ranks."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from engine.errors import EngineError, InvariantViolated, WorkerDied
from engine.executor.channel import Channel, ChannelClosed
from engine.executor.gang import PLANS, REPLIES, GangExecutor
from engine.types import StepResult, int32
from tests.channels import channel_pair
from tests.engine.executor.ranks import CAPACITY, prefill


class Ranks:
    """Two ranks' ends of a gang's channels, played by the test."""

    def __init__(self, deadline_s: float = 30.0) -> None:
        pairs = [channel_pair() for _ in range(2)]
        self.ends: list[Channel] = [far for _, far in pairs]
        self._channels = [near for near, _ in pairs]
        self.executor = GangExecutor(
            self._channels, CAPACITY, run_ahead=2, step_deadline_s=deadline_s
        )

    def reply(self, rank: int, step: int, *, error: str = "") -> None:
        answer = StepResult(step=step) if rank == 0 else step
        self.ends[rank].send(REPLIES.encode(f"step {step}: {error}" if error else answer))

    def close(self) -> None:
        self.executor.close()
        for channel in (*self._channels, *self.ends):
            channel.close()


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


def test_a_failure_beside_a_result_is_not_overlooked(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.reply(1, 0, error="ValueError: bad block")
    ranks.reply(0, 0)
    with pytest.raises(EngineError, match="rank 1 failed"):
        ranks.executor.collect()


def test_an_answer_to_another_step_is_an_invariant_violation(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.reply(0, 0)
    ranks.reply(1, 7)
    with pytest.raises(InvariantViolated, match=r"\[0, 7\]"):
        ranks.executor.collect()


def test_a_late_rank_counts_as_dead() -> None:
    with closing(Ranks(deadline_s=0.01)) as ranks:
        ranks.executor.submit(prefill(0))
        ranks.reply(0, 0)
        with pytest.raises(WorkerDied, match=r"ranks \[1\] did not answer step 0"):
            ranks.executor.collect()


def test_junk_from_a_rank_is_an_error_of_the_engine(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.ends[1].send(b"junk")
    with pytest.raises(InvariantViolated, match=r"not a .*StepResult"):
        ranks.executor.collect()


def test_rank_0_must_answer_with_a_result(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(3))
    for end in ranks.ends:
        end.send(REPLIES.encode(3))
    with pytest.raises(InvariantViolated, match="rank 0 gave no result for step 3"):
        ranks.executor.collect()


def test_the_result_is_that_of_rank_0(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    result = StepResult(step=0, tokens=int32([50]))
    ranks.ends[0].send(REPLIES.encode(result))
    ranks.reply(1, 0)
    assert ranks.executor.collect() == result


def test_slots_that_are_spoiled_on_any_rank_are_in_the_result(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    own = StepResult(step=0, tokens=int32([7]), spoiled_slots=int32([5]))
    ranks.ends[0].send(REPLIES.encode(own))
    ranks.ends[1].send(REPLIES.encode(StepResult(step=0, spoiled_slots=int32([3, 5]))))
    result = ranks.executor.collect()
    assert (list(result.tokens), list(result.spoiled_slots)) == ([7], [3, 5])


def test_a_gang_says_what_its_ranks_hold_and_how_far_it_runs_ahead(ranks: Ranks) -> None:
    assert (ranks.executor.capacity, ranks.executor.run_ahead) == (CAPACITY, 2)


def test_closing_lets_the_ranks_go(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    ranks.executor.close()
    for end in ranks.ends:
        assert PLANS.decode(end.recv()).step == 0
        with pytest.raises(ChannelClosed):
            end.try_recv()
