"""What sequences have computed is found again when they have left, with what they generated."""

from collections.abc import Callable

import pytest

from engine.config import SchedulerConfig
from engine.core.paged_memory import PagedMemory
from engine.core.preemption import Preemption
from engine.types import Capacity, Request, SamplingParams, int32
from tests.core.desk import Desk
from tests.core.expectations import Setting
from tests.core.groups import group_of
from tests.core.harness import Harness
from tests.core.workload import RECOMPUTE, SWAP

PROMPT = list(range(9))


def make_harness(
    run_ahead: int = 2, *, num_blocks: int = 32, preemption: Preemption = RECOMPUTE
) -> Harness:
    """An engine with blocks of 4 tokens, for 60 tokens a sequence."""
    capacity = Capacity(num_blocks=num_blocks, block_size=4, num_rows=8, num_swap_slots=32)
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=60, prompt_share=1.0)
    return Harness(
        Setting(capacity=capacity, config=config, run_ahead=run_ahead, preemption=preemption)
    )


def answer(
    harness: Harness, prompt: list[int], num_tokens: int, **options: object
) -> list[list[int]]:
    """The tokens of each choice, when all is done."""
    sampling = harness.sampling(num_tokens, ignore_eos=True, **options)
    request_id = harness.add(prompt, sampling)
    assert request_id is not None
    harness.drain()
    return [choice.tokens for choice in harness.answers[request_id]]


def num_found(harness: Harness, prompt: list[int], salt: bytes = b"", **options: object) -> int:
    """Tokens of a prompt that a request finds, which computes the others."""
    before = harness.stats.num_cached_tokens
    assert harness.add(prompt, harness.sampling(1, **options), salt=salt) is not None
    harness.drain()
    return harness.stats.num_cached_tokens - before


@pytest.mark.parametrize("run_ahead", [1, 2, 3])
@pytest.mark.parametrize(("num_tokens", "found"), [(10, 16), (11, 16), (12, 20)])
def test_an_answer_is_found_but_for_its_last_token(
    run_ahead: int, num_tokens: int, found: int
) -> None:
    harness = make_harness(run_ahead)
    [tokens] = answer(harness, PROMPT, num_tokens)
    assert num_found(harness, [*PROMPT, *tokens, 50, 51, 52, 53, 54]) == found


def test_every_choice_of_an_answer_is_found() -> None:
    harness = make_harness()
    for tokens in answer(harness, PROMPT, 12, n=3):
        assert num_found(harness, [*PROMPT, *tokens, 50]) == 20


def test_a_search_leaves_its_prompt() -> None:
    harness = make_harness()
    [tokens] = answer(harness, PROMPT, 12, beam_width=3)
    assert num_found(harness, [*PROMPT, *tokens, 50]) == 8


def test_the_answers_of_a_tenant_are_found_by_nobody_else() -> None:
    harness = make_harness()
    [tokens] = answer(harness, PROMPT, 12)
    prompt = [*PROMPT, *tokens, 50]
    assert num_found(harness, prompt, salt=b"other") == 0
    assert num_found(harness, prompt) == 20


def test_a_deterministic_request_finds_no_answer() -> None:
    harness = make_harness()
    [tokens] = answer(harness, PROMPT, 12)
    prompt = [*PROMPT, *tokens, 50]
    assert num_found(harness, prompt, deterministic=True) == 0
    assert num_found(harness, prompt) == 20


def test_what_an_aborted_answer_had_come_to_is_found() -> None:
    harness = make_harness()
    harness.add(PROMPT, harness.sampling(30, ignore_eos=True))
    while len(harness.answers[0][0].tokens) < 12:
        harness.step()
    harness.abort(0)
    harness.drain()
    assert num_found(harness, [*PROMPT, *harness.answers[0][0].tokens[:12], 50]) == 20


def test_answers_make_room_for_whoever_needs_it() -> None:
    harness = make_harness(num_blocks=12)
    [tokens] = answer(harness, PROMPT, 12)
    assert harness.stats.usage.cached == 20
    answer(harness, list(range(50, 60)), 38)
    assert harness.stats.usage.cached == 44
    assert num_found(harness, [*PROMPT, *tokens, 50]) == 0


def test_an_answer_that_was_swapped_out_and_back_is_found() -> None:
    # both need 9 blocks in the end
    harness = make_harness(num_blocks=14, preemption=SWAP)
    for first in (1, 2):
        harness.add([first, *PROMPT], harness.sampling(26, ignore_eos=True))
    harness.drain()
    assert harness.stats.num_swapped_out > 0
    # the last to end is the last to be evicted
    assert num_found(harness, [2, *PROMPT, *harness.answers[1][0].tokens, 50]) == 32


def test_a_recomputed_sequence_finds_what_is_left_of_its_answer() -> None:
    desk = Desk(num_blocks=4, prefix_cache=True)
    desk.add(1, prompt_len=4, max_tokens=9)
    desk.scheduler.add(request(2, [1, 2, 3], max_tokens=9))
    # the sixth step of the first needs a third block; the second has 7 tokens in two
    for _ in range(9):
        _, output = desk.step()
    assert output.stats.num_recomputed == 1
    plan = desk.schedule()
    assert (list(plan.prefill_starts), list(plan.prefill_tokens)) == ([4], [7, 7, 7, 7])


def request(request_id: int, prompt: list[int], max_tokens: int = 1) -> Request:
    """One that goes on at end ids."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=request_id, prompt=int32(prompt), sampling=sampling)


@pytest.mark.parametrize(("last_token", "found"), [(5, 8), (-1, 4)])
def test_what_led_to_an_error_is_not_found(last_token: int, found: int) -> None:
    desk = Desk(prefix_cache=True)
    desk.scheduler.add(request(1, [1, 2, 3, 4, 5], max_tokens=5))
    for token in (6, 7, 8, 9, last_token):
        desk.step(token)
    assert not desk.scheduler.has_work
    desk.scheduler.add(request(2, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert list(desk.schedule().prefill_starts) == [found]


def test_a_fork_is_found_by_the_tokens_that_it_has_now() -> None:
    memory = PagedMemory(num_blocks=16, block_size=2)
    group = group_of([1, 2, 3], (4, 5, 6), (7, 8, 9))
    memory.admit(group)
    parent, child = group.sequences
    for sequence in group.sequences:
        memory.commit(sequence)
    memory.fork(parent.sequence_id, child.sequence_id)
    child.become_fork(parent)
    for token in (10, 11):
        memory.append(child.sequence_id)
        child.output.append(token)
        child.num_scheduled += 1
    memory.commit(child)
    for sequence in group.sequences:
        memory.free(sequence.sequence_id)
    later = group_of([1, 2, 3, 4, 5, 6, 10, 11, 12], first_id=2)
    assert [entry.num_cached for entry in memory.admit(later)] == [8]


RULES: list[Callable[[], None]] = [
    lambda: test_an_answer_is_found_but_for_its_last_token(2, 12, 20),
    test_every_choice_of_an_answer_is_found,
    test_an_answer_that_was_swapped_out_and_back_is_found,
    test_a_recomputed_sequence_finds_what_is_left_of_its_answer,
    lambda: test_what_led_to_an_error_is_not_found(-1, 4),
    test_a_fork_is_found_by_the_tokens_that_it_has_now,
]
