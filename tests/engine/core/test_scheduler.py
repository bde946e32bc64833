"""Who is computed in a step: order, token budget, preemption."""

import pytest

from engine.errors import InvalidRequest
from engine.types import FinishReason, StepResult, int32
from tests.engine.core.harness.scheduler_driver import SchedulerDriver, tokens_by_request


@pytest.mark.parametrize(
    ("budget", "counts"), [(1, [1] * 20), (7, [7, 7, 6]), (64, [20])], ids=["1", "7", "64"]
)
def test_a_prompt_is_prefilled_in_chunks_of_the_budget(budget: int, counts: list[int]) -> None:
    driver = SchedulerDriver(budget=budget)
    driver.add(1, prompt_len=20)
    plans = [driver.step()[0] for _ in counts]
    assert [list(plan.prefill_counts) for plan in plans] == [[count] for count in counts]
    assert [plan.prefill_starts[0] for plan in plans] == [
        sum(counts[:index]) for index in range(len(counts))
    ]
    tokens = [token for plan in plans for token in plan.prefill_tokens]
    assert tokens == list(range(100, 120))


def test_only_the_last_chunk_of_a_prompt_samples() -> None:
    driver = SchedulerDriver(budget=7)
    driver.add(1, prompt_len=20)
    assert [list(driver.step()[0].prefill_samples) for _ in range(3)] == [[0], [0], [1]]


def test_decodes_take_the_budget_before_prefills() -> None:
    driver = SchedulerDriver(budget=4)
    driver.add(1, prompt_len=4)
    driver.step()
    driver.add(2, prompt_len=10)
    plan, _ = driver.step()
    assert list(plan.decode_rows) == [0]
    assert list(plan.prefill_counts) == [3]


def test_the_next_prompt_gets_what_the_budget_has_left() -> None:
    driver = SchedulerDriver(budget=7)
    driver.add(1, prompt_len=4)
    driver.add(2, prompt_len=10)
    plan = driver.schedule()
    assert list(plan.prefill_rows) == [0, 1]
    assert list(plan.prefill_counts) == [4, 3]


def test_an_earlier_prompt_is_finished_before_a_later_one_goes_on() -> None:
    driver = SchedulerDriver(budget=7)
    driver.add(1, prompt_len=10)
    driver.add(2, prompt_len=10)
    counts = [list(driver.step()[0].prefill_counts) for _ in range(3)]
    # the last budget also feeds one token of the first request
    assert counts == [[7], [3, 4], [6]]


def test_a_step_that_is_not_filled_ends_with_the_prompt_that_ends() -> None:
    counts: dict[bool, list[list[int]]] = {}
    for fills_steps in (True, False):
        driver = SchedulerDriver(budget=16, prompt_share=0.5, fills_steps=fills_steps)
        for request_id, prompt_len in enumerate((8, 8, 3, 3, 20)):
            driver.add(request_id, prompt_len=prompt_len, max_tokens=1)
        steps = counts[fills_steps] = []
        while driver.scheduler.has_work:
            steps.append(list(driver.step()[0].prefill_counts))
    assert counts[True] == [[8, 8], [3, 3, 10], [10]]
    # short ones share a step, and a long one goes on with what is left
    assert counts[False] == [[8], [8], [3, 3, 2], [16], [2]]


def test_a_long_prompt_leaves_room_for_others_that_wait() -> None:
    driver = SchedulerDriver(budget=8, num_blocks=100, prompt_share=0.5)
    driver.add(1, prompt_len=30, max_tokens=1)
    assert list(driver.step()[0].prefill_counts) == [8], "by itself it takes all"
    driver.add(2, prompt_len=9, max_tokens=1)
    counts = [list(driver.step()[0].prefill_counts) for _ in range(4)]
    assert counts == [[4, 4], [4, 4], [4, 1], [8]]
    assert list(driver.step()[0].prefill_counts) == [2]


def test_a_long_prompt_leaves_nothing_to_those_that_cannot_enter() -> None:
    driver = SchedulerDriver(budget=8, num_blocks=100, num_rows=1, prompt_share=0.5)
    for request_id in (1, 2):
        driver.add(request_id, prompt_len=16, max_tokens=1)
    assert [list(driver.step()[0].prefill_counts) for _ in range(2)] == [[8], [8]]


def test_short_prompts_get_their_first_token_beside_a_long_one() -> None:
    driver = SchedulerDriver(
        budget=512, num_blocks=1000, block_size=16, num_rows=32, prompt_share=0.5
    )
    driver.add(0, prompt_len=900, max_tokens=1)
    driver.step()
    for request_id in range(1, 21):
        driver.add(request_id, prompt_len=16, max_tokens=1)
    reported = [set(driver.step()[1].request_ids) for _ in range(2)]
    # 320 tokens beside at least 256 of the long prompt in each step
    assert set(range(1, 17)) <= reported[0]
    assert reported[0] | reported[1] == set(range(21))


@pytest.mark.parametrize(("share", "counts"), [(1.0, [900]), (0.0, [256, 256, 256, 132])])
def test_further_long_prompts_are_cut_beside_decodes(share: float, counts: list[int]) -> None:
    driver = SchedulerDriver(num_blocks=500, budget=2048, long_step_share=share)
    driver.add(1, prompt_len=4, max_tokens=100)
    driver.step()
    driver.add(2, prompt_len=900)
    first, _ = driver.step()
    assert list(first.prefill_counts) == [900]
    driver.add(3, prompt_len=900)
    plans = [driver.step()[0] for _ in counts]
    assert [sum(plan.prefill_counts) for plan in plans] == counts


def test_plans_in_flight_last_from_the_latest_result_on() -> None:
    driver = SchedulerDriver()
    scheduler = driver.scheduler
    assert scheduler.busy_until_s() == 0.0
    driver.add(1, prompt_len=4)
    driver.step()
    for at_s in (5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0):
        plan = scheduler.schedule(at_s)
        assert plan is not None
        result = StepResult(
            step=plan.step, rows=plan.sampled_rows, tokens=int32([7]), elapsed_s=0.25
        )
        scheduler.update(result, at_s + 0.5)
    plan = scheduler.schedule(20.0)
    assert plan is not None
    assert scheduler.busy_until_s() == 20.25


def test_requests_wait_for_a_row() -> None:
    driver = SchedulerDriver(num_rows=2)
    for request_id in (1, 2, 3):
        driver.add(request_id, prompt_len=1, max_tokens=1)
    plan, output = driver.step()
    assert len(plan.admissions) == 2
    assert output.stats.num_waiting == 1
    plan, _ = driver.step()
    assert list(plan.releases) == [0, 1]
    assert len(plan.admissions) == 1


def test_a_request_that_must_wait_is_not_overtaken_by_a_smaller_one() -> None:
    driver = SchedulerDriver(num_blocks=4)
    driver.add(1, prompt_len=8, max_tokens=2)
    driver.add(2, prompt_len=12, max_tokens=1)
    driver.add(3, prompt_len=1, max_tokens=1)
    plan, output = driver.step()
    assert list(plan.prefill_counts) == [8]
    assert output.stats.num_waiting == 2


def test_the_latest_request_is_preempted_first() -> None:
    driver = SchedulerDriver(num_blocks=4)
    driver.add(1, prompt_len=7)
    driver.add(2, prompt_len=4)
    driver.add(3, prompt_len=4)
    driver.step()
    # the second request needs a block, and the third is the latest
    plan, output = driver.step()
    assert list(plan.releases) == [2]
    assert list(plan.decode_rows) == [0, 1]
    assert (output.stats.num_recomputed, output.stats.num_waiting) == (1, 1)


def test_the_latest_request_is_preempted_even_for_itself() -> None:
    driver = SchedulerDriver(num_blocks=3)
    driver.add(1, prompt_len=7, max_tokens=5)
    driver.add(2, prompt_len=4, max_tokens=5)
    driver.step()
    plan, output = driver.step()
    assert list(plan.decode_rows) == [0]
    assert (output.stats.num_recomputed, output.stats.num_waiting) == (1, 1)


def test_preempted_requests_come_back_in_order_of_arrival() -> None:
    driver = SchedulerDriver(num_blocks=5)
    driver.add(1, prompt_len=8, max_tokens=3)
    driver.add(2, prompt_len=8)
    driver.add(3, prompt_len=4)
    driver.step()
    driver.step()
    driver.add(4, prompt_len=1)
    ended = driver.step()[1]
    assert list(ended.request_ids) == [1]
    plan, output = driver.step()
    # prompts with the one token that each had: 9 + 5, and the new request still waits
    assert list(plan.prefill_counts) == [9, 5]
    assert output.stats.num_waiting == 1


def test_a_preempted_request_is_prefilled_with_what_it_has_generated() -> None:
    driver = SchedulerDriver(num_blocks=5)
    driver.add(1, prompt_len=7, max_tokens=4)
    driver.add(2, prompt_len=11, max_tokens=5)
    driver.step(1, 51)
    driver.step(2, 52)
    driver.step(3)
    driver.step(4)
    plan, _ = driver.step(53)
    assert list(plan.prefill_tokens) == [*range(100, 111), 51, 52]
    assert list(plan.prefill_samples) == [1]


def test_a_request_preempted_in_flight_keeps_the_token_of_that_plan() -> None:
    driver = SchedulerDriver(num_blocks=3)
    driver.add(1, prompt_len=4, max_tokens=2)
    driver.add(2, prompt_len=8, max_tokens=3)
    driver.schedule()
    # the first request needs a block and the second is preempted, but its blocks are in use
    assert driver.scheduler.schedule() is None
    assert tokens_by_request(driver.update(7, 51))[2] == (51, FinishReason.NONE)
    driver.step()
    plan, _ = driver.step()
    assert list(plan.prefill_tokens) == [*range(100, 108), 51]


def test_blocks_on_their_way_back_are_waited_for_before_more_requests_are_preempted() -> None:
    driver = SchedulerDriver(num_blocks=3)
    for request_id in (1, 2, 3):
        driver.add(request_id, prompt_len=4, max_tokens=3)
    driver.schedule()
    assert driver.scheduler.schedule() is None
    assert driver.scheduler.schedule() is None
    assert driver.update().stats.num_recomputed == 1


def test_a_request_does_not_enter_in_the_step_that_preempts_it() -> None:
    driver = SchedulerDriver(num_blocks=3)
    driver.add(1, prompt_len=4, max_tokens=9)
    driver.add(2, prompt_len=8, max_tokens=3)
    driver.step()
    plan, _ = driver.step()
    assert list(plan.releases) == [1]
    assert not plan.admissions


def test_an_open_request_cannot_be_added_again() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=2)
    with pytest.raises(InvalidRequest, match="request 1 is open already"):
        driver.add(1, prompt_len=2)
    assert set(driver.finish_all()) == {1}


def test_freed_rows_by_themselves_make_no_plan_and_go_with_the_next() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=2, max_tokens=1)
    driver.step()
    assert driver.scheduler.schedule() is None
    driver.add(2, prompt_len=2)
    assert list(driver.schedule().releases) == [0]


def test_without_requests_there_is_no_plan() -> None:
    scheduler = SchedulerDriver().scheduler
    assert scheduler.schedule() is None
    assert not scheduler.has_work


def test_the_most_blocks_of_a_request_are_counted_where_it_wants_to_know() -> None:
    driver = SchedulerDriver(num_blocks=100, num_rows=6)
    driver.add(1, prompt_len=6, max_tokens=4, n=3, counts_blocks=True)
    driver.add(2, prompt_len=6, max_tokens=4, n=3)
    peaks: list[tuple[int, int]] = []
    while driver.scheduler.has_work:
        _, output = driver.step()
        if output.peak_blocks:
            rows = zip(output.request_ids, output.peak_blocks, strict=True)
            peaks += [row for row in rows if row[1]]
    # two of the prompt; its last is copied for two of the three, and each goes on in one more
    assert peaks == [(1, 2), (1, 4), (1, 7)]
