"""A gang's side of the channels to its ranks."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias

import pytest

from engine.errors import EngineError, InvariantViolated, RanksDiverged, WorkerDied
from engine.executor.channel import Channel, ChannelClosed
from engine.executor.gang import PLANS, REPLIES, GangExecutor, RankReply, reply_to
from engine.types import StepPlan, StepResult, int32
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

    def reply(
        self,
        rank: int,
        step: int,
        *,
        token: int = 50,
        error: str = "",
        other_plan: bool = False,
        enqueue_s: float = 0.0,
    ) -> RankReply:
        """Answer the next plan that has come."""
        plan = self.ends[rank].recv() + b"?" * other_plan
        result = StepResult(step=step, rows=int32([0]), tokens=int32([token]))
        reply = reply_to(plan, result, with_result=rank == 0, enqueue_s=enqueue_s)
        reply = RankReply(step=step, error=error) if error else reply
        self.ends[rank].send(REPLIES.encode(reply))
        return reply

    def close(self) -> None:
        self.executor.close()
        for channel in (*self._channels, *self.ends):
            channel.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


Others: TypeAlias = tuple[Channel, Channel]


@pytest.fixture
def others() -> Iterator[Others]:
    """A channel that has nothing to do with the ranks: both ends."""
    near, far = channel_pair()
    with closing(near), closing(far):
        yield near, far


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


def test_waiting_ends_when_an_answer_is_there(ranks: Ranks, others: Others) -> None:
    near, _ = others
    ranks.executor.submit(prefill(0))
    assert not ranks.executor.wait(0.0, near)
    ranks.reply(1, 0)
    assert not ranks.executor.wait(3600.0, near)
    ranks.executor.submit(prefill(1))
    ranks.reply(0, 0)
    ranks.reply(1, 1)
    # takes in what has come of the second rank, too
    ranks.executor.collect()
    assert not ranks.executor.wait(3600.0, near)


def test_waiting_ends_when_a_message_comes_by_another_channel(ranks: Ranks, others: Others) -> None:
    near, far = others
    ranks.executor.submit(prefill(0))
    far.send(b"first")
    assert ranks.executor.wait(3600.0, near)
    # an answer counts more
    ranks.reply(0, 0)
    assert not ranks.executor.wait(3600.0, near)
    assert near.try_recv() == b"first"
    ranks.reply(1, 0)
    ranks.executor.collect()
    assert not ranks.executor.wait(0.0, near)


def test_the_longest_time_of_late_to_take_a_plan_is_known(ranks: Ranks) -> None:
    seen = []
    executor = ranks.executor
    for step, (plan, *seconds) in enumerate(
        [(prefill(0), 0.5, 0.25), (StepPlan(step=1), 0.125, 0.0), (prefill(2), 0.0, 0.75)]
    ):
        executor.submit(plan)
        for rank, enqueue_s in enumerate(seconds):
            ranks.reply(rank, step, enqueue_s=enqueue_s)
        executor.collect()
        known = [executor.enqueueing.seconds(has_prompts=kind) for kind in (True, False)]
        seen.append((executor.submission.has_prompts, *known))
    assert seen == [(True, 0.5, 0.0), (False, 0.5, 0.125), (True, 0.75, 0.125)]


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
    with pytest.raises(InvariantViolated, match=r"not a RankReply"):
        ranks.executor.collect()


def test_rank_0_must_answer_with_a_result(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(3))
    for end in ranks.ends:
        reply = reply_to(end.recv(), StepResult(step=3), with_result=False)
        end.send(REPLIES.encode(reply))
    with pytest.raises(InvariantViolated, match="rank 0 gave no result for step 3"):
        ranks.executor.collect()


def test_the_result_is_that_of_rank_0(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    first = ranks.reply(0, 0)
    ranks.reply(1, 0)
    assert ranks.executor.collect() == first.result


def test_a_rank_that_got_another_plan_is_named_with_the_step(ranks: Ranks) -> None:
    for step in range(2):
        ranks.executor.submit(prefill(step))
    ranks.reply(0, 0)
    ranks.reply(1, 0)
    ranks.executor.collect()
    ranks.reply(0, 1)
    ranks.reply(1, 1, other_plan=True)
    with pytest.raises(RanksDiverged, match="rank 1 got another plan than was sent in step 1"):
        ranks.executor.collect()


def test_a_rank_that_samples_other_tokens_is_named_with_the_step(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(7))
    ranks.reply(0, 7)
    ranks.reply(1, 7, token=51)
    with pytest.raises(RanksDiverged, match="rank 1 sampled other tokens than rank 0 in step 7"):
        ranks.executor.collect()


def test_tokens_of_other_rows_have_another_checksum() -> None:
    result = StepResult(step=0, rows=int32([0, 1]), tokens=int32([5, 6]))
    moved = replace(result, rows=int32([0, 2]))
    first, other = (reply_to(b"plan", each, with_result=False) for each in (result, moved))
    assert first.result_checksum != other.result_checksum
    assert first.plan_checksum == other.plan_checksum


def test_slots_that_are_spoiled_on_any_rank_are_in_the_result(ranks: Ranks) -> None:
    ranks.executor.submit(prefill(0))
    for rank, slots in enumerate([[5], [3, 5]]):
        result = StepResult(step=0, tokens=int32([7]), spoiled_slots=int32(slots))
        reply = reply_to(ranks.ends[rank].recv(), result, with_result=rank == 0)
        ranks.ends[rank].send(REPLIES.encode(reply))
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
