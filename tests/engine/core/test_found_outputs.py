"""What sequences have computed is found again when they have left, with what they generated."""

from collections.abc import Callable

import pytest

from engine.config import SchedulerConfig
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.scheduling.preemption import Preemption
from engine.types import Capacity, Request, SamplingParams, int32
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import Setting
from tests.engine.core.harness.groups import group_of
from tests.engine.core.harness.scheduler_driver import SchedulerDriver
from tests.engine.core.harness.workload import RECOMPUTE, SWAP

PROMPT = list(range(9))


def make_harness(
    run_ahead: int = 2, *, num_blocks: int = 32, preemption: Preemption = RECOMPUTE
) -> CheckedEngine:
    """An engine with blocks of 4 tokens, for 60 tokens a sequence."""
    capacity = Capacity(num_blocks=num_blocks, block_size=4, num_rows=8, num_swap_blocks=32)
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=60, prompt_share=1.0)
    return CheckedEngine(
        Setting(capacity=capacity, config=config, run_ahead=run_ahead, preemption=preemption)
    )


def answer(
    checked: CheckedEngine, prompt: list[int], num_tokens: int, **options: object
) -> list[list[int]]:
    """The tokens of each choice, when all is done."""
    sampling = checked.sampling(num_tokens, ignore_eos=True, **options)
    request_id = checked.add(prompt, sampling)
    assert request_id is not None
    checked.drain()
    return [choice.tokens for choice in checked.answers[request_id]]


def num_found(
    checked: CheckedEngine, prompt: list[int], salt: bytes = b"", **options: object
) -> int:
    """Tokens of a prompt that a request finds, which computes the others."""
    before = checked.stats.num_cached_tokens
    assert checked.add(prompt, checked.sampling(1, **options), salt=salt) is not None
    checked.drain()
    return checked.stats.num_cached_tokens - before


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
@pytest.mark.parametrize(("num_tokens", "found"), [(10, 16), (11, 16), (12, 20)])
def test_an_answer_is_found_but_for_its_last_token(
    run_ahead: int, num_tokens: int, found: int
) -> None:
    checked = make_harness(run_ahead)
    [tokens] = answer(checked, PROMPT, num_tokens)
    assert num_found(checked, [*PROMPT, *tokens, 50, 51, 52, 53, 54]) == found


def test_every_choice_of_an_answer_is_found() -> None:
    checked = make_harness()
    for tokens in answer(checked, PROMPT, 12, n=3):
        assert num_found(checked, [*PROMPT, *tokens, 50]) == 20


def test_a_search_leaves_its_prompt() -> None:
    checked = make_harness()
    [tokens] = answer(checked, PROMPT, 12, beam_width=3)
    assert num_found(checked, [*PROMPT, *tokens, 50]) == 8


def test_the_answers_of_a_tenant_are_found_by_no_other_tenant() -> None:
    checked = make_harness()
    [tokens] = answer(checked, PROMPT, 12)
    prompt = [*PROMPT, *tokens, 50]
    assert num_found(checked, prompt, salt=b"other") == 0
    assert num_found(checked, prompt) == 20


def test_a_deterministic_request_finds_no_answer() -> None:
    checked = make_harness()
    [tokens] = answer(checked, PROMPT, 12)
    prompt = [*PROMPT, *tokens, 50]
    assert num_found(checked, prompt, deterministic=True) == 0
    assert num_found(checked, prompt) == 20


def test_what_an_aborted_answer_had_come_to_is_found() -> None:
    checked = make_harness()
    checked.add(PROMPT, checked.sampling(30, ignore_eos=True))
    while len(checked.answers[0][0].tokens) < 12:
        checked.step()
    checked.abort(0)
    checked.drain()
    assert num_found(checked, [*PROMPT, *checked.answers[0][0].tokens[:12], 50]) == 20


def test_cached_answers_make_room_for_new_requests() -> None:
    checked = make_harness(num_blocks=12)
    [tokens] = answer(checked, PROMPT, 12)
    assert checked.stats.usage.cached == 20
    answer(checked, list(range(50, 60)), 38)
    assert checked.stats.usage.cached == 44
    # the pool has lost them, and the swap space brings them back
    assert num_found(checked, [*PROMPT, *tokens, 50]) == 20
    assert checked.stats.num_restored_tokens == 20


def test_an_answer_that_was_swapped_out_and_back_is_found() -> None:
    # both need 9 blocks in the end
    checked = make_harness(num_blocks=14, preemption=SWAP)
    for first in (1, 2):
        checked.add([first, *PROMPT], checked.sampling(26, ignore_eos=True))
    checked.drain()
    assert checked.stats.num_swapped_out > 0
    # the last to end is the last to be evicted
    assert num_found(checked, [2, *PROMPT, *checked.answers[1][0].tokens, 50]) == 32


def test_a_recomputed_sequence_finds_what_is_left_of_its_answer() -> None:
    driver = SchedulerDriver(num_blocks=4, prefix_cache=True)
    driver.add(1, prompt_len=4, max_tokens=9)
    driver.scheduler.add(request(2, [1, 2, 3], max_tokens=9))
    # the sixth step of the first needs a third block; the second has 7 tokens in two
    for _ in range(9):
        _, output = driver.step()
    assert output.stats.num_recomputed == 1
    plan = driver.schedule()
    assert (list(plan.prefill_starts), list(plan.prefill_tokens)) == ([4], [7, 7, 7, 7])


def request(request_id: int, prompt: list[int], max_tokens: int = 1) -> Request:
    """One that goes on at end ids."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=request_id, prompt=int32(prompt), sampling=sampling)


@pytest.mark.parametrize(("last_token", "found"), [(5, 8), (-1, 4)])
def test_what_led_to_an_error_is_not_found(last_token: int, found: int) -> None:
    driver = SchedulerDriver(prefix_cache=True)
    driver.scheduler.add(request(1, [1, 2, 3, 4, 5], max_tokens=5))
    for token in (6, 7, 8, 9, last_token):
        driver.step(token)
    assert not driver.scheduler.has_work
    driver.scheduler.add(request(2, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert list(driver.schedule().prefill_starts) == [found]


def test_a_fork_is_found_by_the_tokens_that_it_has_now() -> None:
    manager = PagedBlockManager(num_blocks=16, block_size=2)
    group = group_of([1, 2, 3], (4, 5, 6), (7, 8, 9))
    manager.allocate(group)
    parent, child = group.sequences
    for sequence in group.sequences:
        manager.mark_computed(sequence)
    manager.fork(parent.sequence_id, child.sequence_id)
    child.become_fork(parent)
    for token in (10, 11):
        manager.append(child.sequence_id)
        child.output.append(token)
        child.num_scheduled += 1
    manager.mark_computed(child)
    for sequence in group.sequences:
        manager.free(sequence.sequence_id)
    later = group_of([1, 2, 3, 4, 5, 6, 10, 11, 12], first_id=2)
    assert [allocation.num_cached for allocation in manager.allocate(later)] == [8]


RULES: list[Callable[[], None]] = [
    lambda: test_an_answer_is_found_but_for_its_last_token(2, 12, 20),
    test_every_choice_of_an_answer_is_found,
    test_an_answer_that_was_swapped_out_and_back_is_found,
    test_a_recomputed_sequence_finds_what_is_left_of_its_answer,
    lambda: test_what_led_to_an_error_is_not_found(-1, 4),
    test_a_fork_is_found_by_the_tokens_that_it_has_now,
]
