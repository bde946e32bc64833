from dataclasses import replace

import pytest

from engine.errors import InvalidRequest, Overloaded, PromptTooLong
from engine.runtime.replica.admission import MAX_RETRY_S, MIN_RETRY_S, Admission
from engine.types import Capacity, Progress, Request, SamplingParams, SearchSteps, int32
from tests.fakes.scripted_worker import engine_config

CAPACITY = Capacity(num_blocks=10, block_size=4, num_rows=4)


def request(prompt_len: int = 3, max_tokens: int = 4, n: int = 1) -> Request:
    return Request(
        request_id=1,
        prompt=int32([1] * prompt_len),
        sampling=SamplingParams(max_tokens=max_tokens, n=n),
    )


@pytest.fixture
def admission() -> Admission:
    return Admission(engine_config(max_num_waiting=4), CAPACITY)


def test_a_request_that_fits_is_accepted(admission: Admission) -> None:
    admission.check(request(), num_waiting=3, now_s=0.0)


def test_a_clipped_context_clips_outputs_and_refuses_prompts() -> None:
    clipped = Admission(engine_config().with_options(clips_context=True), CAPACITY)
    assert clipped.max_model_len == 40
    clipped.check(request(30, 20), num_waiting=0, now_s=0.0)
    with pytest.raises(PromptTooLong) as context:
        clipped.check(request(40, 1), num_waiting=0, now_s=0.0)
    assert (context.value.limit, context.value.got) == (40, 40)


def test_what_outgrows_the_pool_or_the_model_is_refused_with_both_numbers(
    admission: Admission,
) -> None:
    with pytest.raises(PromptTooLong) as pool:
        admission.check(request(30, 20), num_waiting=0, now_s=0.0)
    assert (pool.value.limit, pool.value.got) == (40, 52)
    with pytest.raises(PromptTooLong) as model:
        admission.check(request(200), num_waiting=0, now_s=0.0)
    assert (model.value.limit, model.value.got) == (200, 200)


def test_every_choice_counts_against_the_pool_and_the_rows(admission: Admission) -> None:
    admission.check(request(8, 8, n=4), num_waiting=0, now_s=0.0)
    with pytest.raises(PromptTooLong):
        admission.check(request(8, 12, n=4), num_waiting=0, now_s=0.0)
    with pytest.raises(InvalidRequest, match="up to 4 sequences"):
        admission.check(request(n=5), num_waiting=0, now_s=0.0)


def test_what_a_baseline_can_never_reserve_is_refused_before_it_is_queued() -> None:
    config = engine_config(max_num_waiting=4).with_options(memory_policy="reserved_pow2")
    admission = Admission(config, CAPACITY)
    # each of two sequences takes a chunk of 4 of the 10 blocks
    admission.check(request(8, 8, n=2), num_waiting=0, now_s=0.0)
    # the output counts as 16 tokens, and 6 blocks come in a chunk of 8
    with pytest.raises(PromptTooLong) as caught:
        admission.check(request(8, 9, n=2), num_waiting=0, now_s=0.0)
    assert (caught.value.limit, caught.value.got) == (40, 64)


def test_an_empty_prompt_is_refused(admission: Admission) -> None:
    with pytest.raises(InvalidRequest):
        admission.check(replace(request(), prompt=int32()), num_waiting=0, now_s=0.0)


@pytest.mark.parametrize(
    ("num_waiting", "seconds_per_finish", "retry_s"),
    [(4, 2.0, 2.0), (7, 2.0, 8.0), (4, 0.01, MIN_RETRY_S), (1000, 2.0, MAX_RETRY_S)],
)
def test_a_full_queue_names_the_time_until_it_has_room(
    admission: Admission, num_waiting: int, seconds_per_finish: float, retry_s: float
) -> None:
    for count in range(10):
        admission.finished(1, count * seconds_per_finish)
    with pytest.raises(Overloaded) as full:
        admission.check(request(), num_waiting=num_waiting, now_s=10 * seconds_per_finish)
    assert full.value.retry_after_s == pytest.approx(retry_s)


def test_without_a_known_rate_the_shortest_time_is_named(admission: Admission) -> None:
    with pytest.raises(Overloaded) as full:
        admission.check(request(), num_waiting=4, now_s=0.0)
    assert full.value.retry_after_s == MIN_RETRY_S


def test_the_queue_is_never_too_full_for_what_another_engine_has_begun(
    admission: Admission,
) -> None:
    begun = replace(request(), progress=Progress())
    admission.check(begun, num_waiting=1000, now_s=0.0)
    with pytest.raises(Overloaded):
        admission.check(request(), num_waiting=1000, now_s=0.0)
    with pytest.raises(PromptTooLong):
        admission.check(replace(request(200), progress=Progress()), num_waiting=0, now_s=0.0)


def test_tokens_that_the_model_does_not_have_are_refused(admission: Admission) -> None:
    size = engine_config().model.num_choices
    for token, is_known in ((size - 1, True), (size, False)):
        tokens = int32([1, token])
        for progress in (Progress(tokens=tokens), Progress(search=SearchSteps(tokens=tokens))):
            begun = replace(request(), progress=progress)
            if is_known:
                admission.check(begun, num_waiting=0, now_s=0.0)
                continue
            with pytest.raises(InvalidRequest, match=f"{size} is no token"):
                admission.check(begun, num_waiting=0, now_s=0.0)
