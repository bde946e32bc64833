"""How sequences end, and when what they held comes back."""

import pytest

from engine.types import FinishReason, StepOutput
from tests.engine.core.harness.scheduler_driver import SchedulerDriver, tokens_by_request

NONE, STOP, LENGTH = FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH
ABORT, ERROR = FinishReason.ABORT, FinishReason.ERROR


def all_is_free(driver: SchedulerDriver) -> bool:
    """Whether the next request finds an empty pool and the row that is handed out first."""
    driver.add(99, prompt_len=1, max_tokens=1)
    plan, output = driver.step()
    usage = output.stats.usage
    return usage.free + usage.cached == usage.total and len(plan.admissions) == 1


@pytest.mark.parametrize(
    ("token", "ignore_eos", "reason"),
    [
        (2, False, STOP),
        (3, False, STOP),
        (2, True, NONE),
        (3, True, NONE),
        (5, False, STOP),
        (5, True, STOP),
        (6, False, NONE),
    ],
)
def test_end_ids_and_stop_ids_end_a_sequence(
    token: int, ignore_eos: bool, reason: FinishReason
) -> None:
    driver = SchedulerDriver(eos_token_ids=(2, 3))
    driver.add(1, prompt_len=3, stop_token_ids=(5,), ignore_eos=ignore_eos)
    assert tokens_by_request(driver.step(token)[1]) == {1: (token, reason)}


def test_max_tokens_ends_a_sequence_with_its_last_token() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3, max_tokens=2)
    assert tokens_by_request(driver.step(8)[1]) == {1: (8, NONE)}
    assert tokens_by_request(driver.step(9)[1]) == {1: (9, LENGTH)}
    assert not driver.scheduler.has_work
    assert all_is_free(driver)


def test_a_stop_id_that_is_also_the_last_token_is_a_stop() -> None:
    driver = SchedulerDriver(eos_token_ids=(2,))
    driver.add(1, prompt_len=3, max_tokens=1)
    assert tokens_by_request(driver.step(2)[1]) == {1: (2, STOP)}


def test_max_tokens_is_clipped_to_the_context() -> None:
    driver = SchedulerDriver(num_blocks=300)
    driver.add(1, prompt_len=998, max_tokens=10_000)
    last = None
    for _ in range(17):
        last = driver.step()[1]
    assert last is not None
    assert tokens_by_request(last) == {1: (7, LENGTH)}
    assert not driver.scheduler.has_work


def test_plans_ahead_never_go_beyond_max_tokens() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3, max_tokens=3)
    plans = [driver.schedule() for _ in range(3)]
    assert [len(plan.sampled_rows) for plan in plans] == [1, 1, 1]
    assert driver.scheduler.schedule() is None


def test_a_sequence_that_ends_in_a_plan_ahead_wastes_one_row_and_nothing_else() -> None:
    driver = SchedulerDriver(eos_token_ids=(2,))
    driver.add(1, prompt_len=3)
    driver.add(2, prompt_len=3)
    driver.schedule()
    assert list(driver.schedule().decode_rows) == [0, 1]
    assert tokens_by_request(driver.update(2, 7)) == {1: (2, STOP), 2: (7, NONE)}
    assert list(driver.schedule().decode_rows) == [1]
    # the token of the first row is dropped, even if it is an end id again
    assert tokens_by_request(driver.update(2, 8)) == {2: (8, NONE)}
    assert tokens_by_request(driver.update(9)) == {2: (9, NONE)}


def test_rows_and_blocks_return_after_the_last_plan_that_touches_them() -> None:
    driver = SchedulerDriver(eos_token_ids=(2,), num_blocks=2)
    driver.add(1, prompt_len=3, max_tokens=4)
    driver.schedule()
    driver.schedule()
    output = driver.update(2)
    assert output.stats.usage.free == 4
    driver.add(2, prompt_len=5, max_tokens=1)
    # two blocks are needed, and one is still written by the plan ahead
    assert driver.scheduler.schedule() is None
    assert driver.update(7).stats.usage.free == 8
    assert list(driver.schedule().releases) == [0]


def test_an_error_ends_one_sequence_and_its_neighbours_go_on() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3)
    driver.add(2, prompt_len=3, max_tokens=2)
    assert tokens_by_request(driver.step(-1, 7)[1]) == {1: (-1, ERROR), 2: (7, NONE)}
    assert tokens_by_request(driver.step(8)[1]) == {2: (8, LENGTH)}
    assert all_is_free(driver)


def test_an_error_after_which_a_plan_ahead_went_on_is_reported_once() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3)
    driver.schedule()
    driver.schedule()
    assert tokens_by_request(driver.update(-1)) == {1: (-1, ERROR)}
    assert tokens_by_request(driver.update(-1)) == {}
    assert all_is_free(driver)


def abort_and_check(driver: SchedulerDriver) -> None:
    """Aborts request 1: one terminal record, and everything comes back."""
    driver.scheduler.abort(1)
    driver.scheduler.abort(1)
    assert driver.finish_all() == {1: (-1, ABORT)}
    assert all_is_free(driver)


def test_abort_while_waiting() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3)
    abort_and_check(driver)


def test_abort_between_chunks_of_the_prefill() -> None:
    driver = SchedulerDriver(budget=4)
    driver.add(1, prompt_len=10)
    driver.step()
    abort_and_check(driver)


def test_abort_while_a_chunk_of_the_prefill_is_in_flight() -> None:
    driver = SchedulerDriver(budget=4)
    driver.add(1, prompt_len=10)
    driver.step()
    driver.schedule()
    abort_and_check(driver)


def test_abort_between_decodes() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3)
    driver.step()
    driver.step()
    abort_and_check(driver)


def test_abort_with_plans_in_flight() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3)
    driver.schedule()
    driver.schedule()
    abort_and_check(driver)


@pytest.mark.parametrize("in_flight", [False, True])
def test_abort_while_preempted(in_flight: bool) -> None:
    driver = SchedulerDriver(num_blocks=3)
    driver.add(2, prompt_len=4, max_tokens=3)
    driver.add(1, prompt_len=8, max_tokens=3)
    driver.schedule()
    if not in_flight:
        driver.update()
        driver.schedule()
    else:
        assert driver.scheduler.schedule() is None
    driver.scheduler.abort(1)
    assert driver.finish_all() == {1: (-1, ABORT), 2: (7, LENGTH)}
    assert all_is_free(driver)


def test_abort_after_the_end_and_of_unknown_requests_does_nothing() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3, max_tokens=1)
    driver.step()
    driver.scheduler.abort(1)
    driver.scheduler.abort(5)
    assert not driver.scheduler.has_work


def test_the_id_of_an_ended_request_can_be_used_again() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=3)
    driver.schedule()
    driver.scheduler.abort(1)
    driver.add(1, prompt_len=2, max_tokens=1)
    assert driver.finish_all() == {1: (7, LENGTH)}
    assert all_is_free(driver)


def choices(output: StepOutput) -> list[tuple[int, FinishReason]]:
    """Choice and finish reason of all items."""
    rows = zip(output.choices, output.finish_reasons, strict=True)
    return [(choice, FinishReason(reason)) for choice, reason in rows]


def test_an_aborted_choice_frees_the_blocks_that_only_it_held() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=5, n=3)
    driver.step()
    driver.step()
    assert driver.step()[1].stats.usage.free == 64 - 4 * 4
    driver.scheduler.abort(1, 1)
    plan, output = driver.step()
    assert len(plan.decode_rows) == 2
    assert choices(output)[0] == (1, ABORT)
    assert output.stats.usage.free == 64 - 3 * 4
    last = driver.step()[1]
    assert {choice for choice, _ in choices(last)} == {0, 2}
    assert all_is_free(driver) is False
    driver.finish_all()
    assert all_is_free(driver)


def test_a_choice_aborted_before_its_fork_ends_in_place_of_its_first_token() -> None:
    driver = SchedulerDriver(budget=4)
    driver.add(1, prompt_len=6, n=2)
    driver.step()
    driver.scheduler.abort(1, 0)
    assert choices(driver.step()[1]) == [(0, ABORT), (1, NONE)]
    driver.finish_all()
    assert all_is_free(driver)


def test_the_last_choice_takes_the_request_with_it() -> None:
    driver = SchedulerDriver()
    driver.add(1, prompt_len=5, n=2)
    driver.step()
    for choice in (1, 0, 0, 7):
        driver.scheduler.abort(1, choice)
    assert choices(driver.scheduler.take_output(0.0)) == [(1, ABORT), (0, ABORT)]
    assert not driver.scheduler.has_work
    assert all_is_free(driver)
