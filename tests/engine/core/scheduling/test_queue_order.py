"""The policies that `queue_policy` names: who enters next, and what that comes to under load."""

from collections import Counter
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.scheduling.queue_order import OUTPUT_COST, FairOrder, PriorityOrder, QueueOrder
from engine.core.sequence_group import SequenceGroup
from engine.types import FinishReason, Terms
from tests.engine.core.harness.groups import group_of
from tests.engine.core.harness.scheduler_driver import SchedulerDriver

A, B = b"a", b"b"


def group(number: int, prompt_len: int = 1, **terms: Any) -> SequenceGroup:
    return group_of([1] * prompt_len, first_id=number, terms=Terms(**terms))


def serve(order: QueueOrder, num_groups: int, sampled: int = 0) -> list[int]:
    """Let groups enter; returns their numbers."""
    numbers = []
    for _ in range(num_groups):
        first = order.first
        assert first is not None
        order.remove(first)
        order.entered(first)
        order.sampled([(first, first.sequences[0])] * sampled)
        numbers.append(first.request.request_id)
    return numbers


@pytest.mark.parametrize("order", [QueueOrder(), FairOrder(), PriorityOrder()])
def test_requests_on_equal_terms_are_served_first_come_first_served(order: QueueOrder) -> None:
    groups = [group(number, prompt_len=9 - number) for number in range(6)]
    for each in groups:
        order.add(each)
    order.remove(groups[2])
    assert (len(order), list(order)) == (5, groups[:2] + groups[3:])
    assert order.oldest is groups[0]
    assert serve(order, 5) == [0, 1, 3, 4, 5]
    assert len(order) == 0
    assert order.first is order.oldest is None


def test_a_lower_priority_goes_first_and_then_who_came_first() -> None:
    order = PriorityOrder()
    for number, priority in enumerate([0, 5, -3, 0, -3]):
        order.add(group(number, priority=priority))
    assert order.oldest is not None
    assert order.oldest.request.request_id == 0
    assert serve(order, 5) == [2, 4, 0, 3, 1]


def test_who_has_had_least_for_its_weight_goes_next() -> None:
    order = FairOrder()
    for number in range(4):
        order.add(group(number, prompt_len=30, account=A, weight=1.0))
    for number in range(4, 10):
        order.add(group(number, prompt_len=30, account=B, weight=3.0))
    assert serve(order, 8) == [0, 4, 5, 6, 1, 7, 8, 9]


def test_output_counts_as_it_comes() -> None:
    order = FairOrder()
    for number, account in enumerate([A, A, A, B, B, B, B]):
        order.add(group(number, prompt_len=2, account=account))
    # what A has sampled for its first costs as much as three prompts of B
    assert serve(order, 1, sampled=int(6 / OUTPUT_COST)) == [0]
    assert serve(order, 5) == [3, 4, 5, 6, 1]


def test_nobody_saves_up_while_nothing_of_it_is_queued() -> None:
    order = FairOrder()
    for number in range(100):
        order.add(group(number, prompt_len=10, account=A))
    serve(order, 50)
    for number in range(100, 200):
        order.add(group(number, prompt_len=10, account=B))
    served = serve(order, 20)
    assert sum(number >= 100 for number in served) == pytest.approx(10, abs=1)


def backlogged(driver: SchedulerDriver, weights: dict[bytes, float], rng: Random) -> Counter[bytes]:
    """Keep both accounts backlogged for 400 steps; returns the cost that each has had."""
    numbers, accounts = count(), dict[int, bytes]()
    cost, waiting = Counter[bytes](), Counter[bytes]()
    prompt_lens = {}
    for _ in range(400):
        for account, weight in weights.items():
            while waiting[account] < 16:
                number = next(numbers)
                accounts[number] = account
                prompt_lens[number] = rng.randint(1, 12)
                terms = Terms(account=account, weight=weight)
                driver.add(number, prompt_lens[number], rng.randint(1, 12), terms=terms)
                waiting[account] += 1
        _, output = driver.step()
        for number in output.request_ids:
            prompt_len = prompt_lens.pop(number, 0)
            # its first output
            waiting[accounts[number]] -= prompt_len > 0
            cost[accounts[number]] += int(prompt_len + OUTPUT_COST)
    return cost


@settings(max_examples=12)
@given(st.integers(0, 1000), st.sampled_from([1.0, 2.0, 3.0, 10.0]), st.integers(2, 12))
def test_backlogged_accounts_share_by_their_weights(seed: int, weight: float, rows: int) -> None:
    driver = SchedulerDriver(num_blocks=200, num_rows=rows, budget=48)
    cost = backlogged(driver, {A: 1.0, B: weight}, Random(seed))
    assert cost[B] / cost.total() == pytest.approx(weight / (1 + weight), rel=0.1)
    assert cost[A] / cost.total() == pytest.approx(1 / (1 + weight), rel=0.1)


def test_shares_hold_while_groups_are_preempted() -> None:
    driver = SchedulerDriver(num_blocks=16, num_rows=12, budget=48, num_swap_blocks=8)
    cost = backlogged(driver, {A: 1.0, B: 3.0}, Random(5))
    assert driver.scheduler.take_output(0.0).stats.num_swapped_out > 20
    assert cost[B] / cost.total() == pytest.approx(0.75, rel=0.1)


def run_to_the_end(queue_policy: str) -> tuple[int, int]:
    """Steps until all is served, and until the last request is, which is of another account."""
    driver = SchedulerDriver(num_blocks=200, num_rows=4, budget=64, queue_policy=queue_policy)
    for number in range(60):
        driver.add(number, 8, 5, terms=Terms(account=A, weight=1000.0))
    driver.add(60, 8, 5, terms=Terms(account=B, weight=0.001))
    num_steps, ended = 0, dict[int, int]()
    while driver.scheduler.has_work:
        _, output = driver.step()
        num_steps += 1
        ended |= dict.fromkeys(output.request_ids, num_steps)
    return num_steps, ended[60]


def test_nobody_starves_and_no_row_stays_free_for_anybody() -> None:
    (num_steps, last), (num_fair_steps, last_fair) = map(run_to_the_end, ("fcfs", "fair"))
    assert last == num_steps == num_fair_steps
    # beside what had begun before it was queued
    assert last_fair <= 10


def test_a_request_that_has_begun_keeps_its_place_before_all_new_ones() -> None:
    driver = SchedulerDriver(num_blocks=6, num_rows=3, budget=64)
    for number in range(2):
        driver.add(number, 8, 16, terms=Terms(account=A))
    while not (output := driver.step()[1]).stats.num_recomputed:
        pass
    # A has had much and B nothing, and yet what was preempted comes back first
    driver.add(2, 4, 1, terms=Terms(account=B))
    first_of = dict[int, int]()
    for step in count():
        for number in output.request_ids:
            first_of.setdefault(number, step)
        if 2 in first_of:
            break
        output = driver.step()[1]
    assert output.stats.num_waiting == 0


def test_what_has_waited_too_long_ends_without_being_computed() -> None:
    driver = SchedulerDriver(num_rows=1)
    driver.add(0, 4, 3, terms=Terms(max_wait_s=10.0))
    driver.add(1, 4, 3, terms=Terms(max_wait_s=10.0))
    driver.add(2, 4, 3)
    driver.step()
    driver.scheduler.expire(10.0)
    assert driver.step()[1].stats.num_waiting == 2
    driver.scheduler.expire(10.1)
    output = driver.step()[1]
    ends = dict(zip(output.request_ids, output.finish_reasons, strict=True))
    assert ends == {0: FinishReason.LENGTH, 1: FinishReason.EXPIRED}
    assert driver.finish_all() == {2: (7, FinishReason.LENGTH)}


def test_what_has_begun_does_not_expire() -> None:
    driver = SchedulerDriver(num_blocks=6, num_rows=3, budget=64)
    for number in range(2):
        driver.add(number, 8, 16, terms=Terms(max_wait_s=10.0))
    while not driver.step()[1].stats.num_recomputed:
        pass
    driver.scheduler.expire(1000.0)
    ends = driver.finish_all()
    assert {reason for _, reason in ends.values()} == {FinishReason.LENGTH}
