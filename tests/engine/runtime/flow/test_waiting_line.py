"""What a replica predicts of the time that a request would wait."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.config import QueuePolicy
from engine.runtime.flow.waiting_line import (
    FIRST_OUTPUT,
    MAX_RETRY_S,
    MIN_RETRY_S,
    WaitingLine,
)
from engine.runtime.outputs import idle_stats
from engine.types import (
    Capacity,
    FinishReason,
    Progress,
    Request,
    SamplingParams,
    StepOutput,
    Terms,
    float32,
    int32,
    int64,
)

IDLE = idle_stats(Capacity(num_blocks=25, block_size=4, num_rows=4))
A, B = b"a", b"b"
NOW = Terms(account=A)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def request(number: int, prompt_len: int = 18, max_tokens: int = 1, **terms: Any) -> Request:
    """It costs `prompt_len + 2 * max_tokens` as long as that is few."""
    return Request(
        request_id=number,
        prompt=int32([1] * prompt_len),
        sampling=SamplingParams(max_tokens=max_tokens),
        terms=Terms(**terms),
    )


def output(
    ids: Sequence[int],
    *,
    running: int = 4,
    waiting: int = 9,
    reason: FinishReason = FinishReason.NONE,
) -> StepOutput:
    count = len(ids)
    return StepOutput(
        step=1, request_ids=int64(list(ids)), choices=int32([0] * count),
        tokens=int32([7] * count), logprobs=float32([0.0] * count),
        finish_reasons=array("b", [reason] * count), top_counts=int32(),
        top_tokens=int32(), top_logprobs=float32(),
        stats=replace(IDLE, num_running=running, num_waiting=waiting),
    )  # fmt: skip


class Line(WaitingLine):
    """A line in whose full batch of 4 a request of cost 20 begins each second."""

    def __init__(self, policy: QueuePolicy = "fair") -> None:
        self.clock = Clock()
        super().__init__(policy, 4, self.clock)
        self.observe(output([]), 0)
        for number in range(1000, 1200):
            self.joined(request(number))
            self.clock.now_s += 1.0
            self.observe(output([number], reason=FinishReason.LENGTH), 1)


def test_without_requests_or_a_known_pace_nobody_waits() -> None:
    line = WaitingLine("fcfs", 4, Clock())
    assert (line.wait_s(NOW), line.room(request(1), 5.0)) == (0.0, float("inf"))
    assert line.opens_per_s(request(1)) == 0.0
    line.joined(request(1))
    assert line.wait_s(NOW) == 0.0
    assert Line().wait_s(NOW) == 0.0


def test_the_first_steps_of_a_process_do_not_make_anyone_wait() -> None:
    """One request in 7 s is the pace of a process whose first steps take long."""
    clock = Clock()
    line = WaitingLine("fcfs", 4, clock)
    for number in range(8):
        line.joined(request(number, 100, 100))
    line.observe(output([], running=1), 0)
    clock.now_s += 7.0
    line.observe(output([0]), 0)
    assert line.wait_s(NOW) == 0.0
    assert line.room(request(99), 30.0) == float("inf")
    for number in range(1, 4):
        clock.now_s += 7.0
        line.observe(output([number]), 0)
    # but what goes on for longer is believed
    assert line.wait_s(NOW) == pytest.approx(4 * 7.0, rel=0.05)


def test_a_request_waits_for_what_came_before_it_at_the_measured_pace() -> None:
    line = Line("fcfs")
    for number in range(10):
        line.joined(request(number, account=B))
    assert line.wait_s(NOW) == pytest.approx(10.0, rel=0.05)
    assert line.prompt_tokens == 180
    assert line.room(request(99), 15.0) == pytest.approx(5.0, rel=0.1)
    # as many must begin before one more waits for no longer than that
    assert line.room(request(99), 5.0) == pytest.approx(-5.0, rel=0.1)
    assert line.opens_per_s(request(99)) == pytest.approx(1.0, rel=0.1)
    line.clock.now_s += 3.0
    line.observe(output([0, 1, 2]), 3)
    assert line.wait_s(NOW) == pytest.approx(7.0, rel=0.05)
    assert line.prompt_tokens == 126


def test_what_was_ended_in_the_queue_says_nothing_of_the_pace() -> None:
    line = Line("fcfs")
    for number in range(10):
        line.joined(request(number))
    line.clock.now_s += 1.0
    line.observe(output([0, 1, 2, 3, 4, 5], reason=FinishReason.EXPIRED), 6)
    assert line.wait_s(NOW) >= 4.0


def test_a_full_batch_is_assumed_where_nothing_has_waited() -> None:
    line = WaitingLine("fcfs", 4, Clock())
    clock = line._clock
    assert isinstance(clock, Clock)
    # each request is in the batch by itself, for 2 seconds
    for number in range(20):
        line.joined(request(number))
        line.observe(output([], running=1, waiting=0), 0)
        clock.now_s += 2.0
        line.observe(output([number], running=1, waiting=0), 1)
    for number in range(100, 112):
        line.joined(request(number))
    # four at a time
    assert line.wait_s(NOW) == pytest.approx(6.0, rel=0.1)


def test_an_account_waits_for_its_own_work_and_others_share() -> None:
    line = Line("fair")
    for number in range(12):
        line.joined(request(number, account=A, weight=1.0))
    assert line.wait_s(Terms(account=B, weight=3.0)) == 0.0
    assert line.share_of(Terms(account=A, weight=1.0)) == 1.0
    assert line.share_of(Terms(account=B, weight=3.0)) == 0.75
    for number in range(12, 18):
        line.joined(request(number, account=B, weight=3.0))
    # B's 6 are served with 2 of A, and A's 12 with all 6 of B
    assert line.wait_s(Terms(account=B, weight=3.0)) == pytest.approx(8.0, rel=0.05)
    assert line.wait_s(Terms(account=A, weight=1.0)) == pytest.approx(18.0, rel=0.05)
    # at least a share of three quarters
    assert line.room(request(99, account=B, weight=3.0), 20.0) == pytest.approx(9.0, rel=0.1)
    assert line.opens_per_s(request(99, account=B, weight=3.0)) == pytest.approx(0.75, rel=0.1)
    assert line.opens_per_s(request(99, account=A)) == pytest.approx(0.25, rel=0.1)
    assert (line.num_of(B), line.tokens_of(B)) == (6, 6 * 18)


def test_by_priority_a_request_waits_for_what_is_as_important() -> None:
    line = Line("priority")
    for number, priority in enumerate([5, 0, 0, -1]):
        line.joined(request(number, priority=priority))
    waits = [line.wait_s(Terms(priority=priority)) for priority in (-2, -1, 0, 9)]
    assert waits == pytest.approx([0.0, 1.0, 3.0, 4.0], rel=0.05)


def test_output_counts_as_much_as_it_was_of_late_and_no_more_than_may_come() -> None:
    line = WaitingLine("fcfs", 4, Clock())
    assert line._cost(request(1, 10, max_tokens=1000)) == 10 + 2 * FIRST_OUTPUT
    assert line._cost(request(1, 10, max_tokens=3)) == 16
    line.observe(output([1] * 30), 2)
    assert line._cost(request(1, 10, max_tokens=1000)) == 40


def test_what_left_and_what_a_lost_scheduler_had_is_waited_for_no_more() -> None:
    line = Line("fair")
    for number in range(4):
        line.joined(request(number, account=A))
    line.joined(replace(request(9), progress=Progress()))
    assert line.left(0) > 0
    assert line.left(0) == line.left(9) == 0.0
    assert line.num_of(A) == 3
    line.restart()
    assert (line.num_of(A), line.tokens_of(A), line.prompt_tokens) == (0, 0, 0)
    assert line.wait_s(NOW) == 0.0


def test_a_retry_is_worth_it_when_all_that_waits_has_begun() -> None:
    line = Line("fcfs")
    assert line.retry_after_s(NOW) == MIN_RETRY_S
    for number in range(20):
        line.joined(request(number))
    assert line.retry_after_s(NOW) == pytest.approx(20.0, rel=0.05)
    for number in range(20, 500):
        line.joined(request(number))
    assert line.retry_after_s(NOW) == MAX_RETRY_S


def test_who_has_waited_too_long_is_told_when_to_come_back() -> None:
    line = Line("fcfs")
    for number in range(10):
        line.joined(request(number))
    explained = line.explain_expired(output([3, 3], reason=FinishReason.EXPIRED))
    [(number, refusal)] = explained.refusals
    assert (number, refusal.code) == (3, "queue_full")
    assert refusal.retry_after_s == pytest.approx(10.0, rel=0.05)
