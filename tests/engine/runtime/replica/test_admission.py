from dataclasses import replace

import pytest

from engine.errors import InvalidRequest, Overloaded, PromptTooLong
from engine.runtime.flow.waiting_line import WaitingLine
from engine.runtime.replica.admission import Admission
from engine.types import Capacity, Progress, Request, SamplingParams, SearchSteps, Terms, int32
from tests.fakes.scripted_worker import engine_config

CAPACITY = Capacity(num_blocks=10, block_size=4, num_rows=4)


class FixedLine(WaitingLine):
    """A line in which every request waits for 5 seconds."""

    def wait_s(self, terms: Terms) -> float:
        return 5.0


def request(prompt_len: int = 3, max_tokens: int = 4, n: int = 1) -> Request:
    return Request(
        request_id=1,
        prompt=int32([1] * prompt_len),
        sampling=SamplingParams(max_tokens=max_tokens, n=n),
    )


@pytest.fixture
def admission() -> Admission:
    return Admission(engine_config(max_num_waiting=4), CAPACITY, waiting())


def test_a_request_that_fits_is_accepted(admission: Admission) -> None:
    admission.check(request(), num_waiting=3)


def test_a_clipped_context_clips_outputs_and_refuses_prompts() -> None:
    clipped = Admission(engine_config().with_options(clips_context=True), CAPACITY, waiting())
    assert clipped.max_model_len == 40
    clipped.check(request(30, 20), num_waiting=0)
    with pytest.raises(PromptTooLong) as context:
        clipped.check(request(40, 1), num_waiting=0)
    assert (context.value.limit, context.value.got) == (40, 40)


def test_what_outgrows_the_pool_or_the_model_is_refused_with_both_numbers(
    admission: Admission,
) -> None:
    with pytest.raises(PromptTooLong) as pool:
        admission.check(request(30, 20), num_waiting=0)
    assert (pool.value.limit, pool.value.got) == (40, 52)
    with pytest.raises(PromptTooLong) as model:
        admission.check(request(200), num_waiting=0)
    assert (model.value.limit, model.value.got) == (200, 200)


def test_every_choice_counts_against_the_pool_and_the_rows(admission: Admission) -> None:
    admission.check(request(8, 8, n=4), num_waiting=0)
    with pytest.raises(PromptTooLong):
        admission.check(request(8, 12, n=4), num_waiting=0)
    with pytest.raises(InvalidRequest, match="up to 4 sequences"):
        admission.check(request(n=5), num_waiting=0)


def test_what_a_baseline_can_never_reserve_is_refused_before_it_is_queued() -> None:
    config = engine_config(max_num_waiting=4).with_options(memory_policy="reserved_pow2")
    admission = Admission(config, CAPACITY, waiting())
    # each of two sequences takes a chunk of 4 of the 10 blocks
    admission.check(request(8, 8, n=2), num_waiting=0)
    # the output counts as 16 tokens, and 6 blocks come in a chunk of 8
    with pytest.raises(PromptTooLong) as caught:
        admission.check(request(8, 9, n=2), num_waiting=0)
    assert (caught.value.limit, caught.value.got) == (40, 64)


def test_an_empty_prompt_is_refused(admission: Admission) -> None:
    with pytest.raises(InvalidRequest):
        admission.check(replace(request(), prompt=int32()), num_waiting=0)


def waiting(*lens: int, account: bytes = b"") -> FixedLine:
    line = FixedLine("fair", 4, lambda: 0.0)
    for number, length in enumerate(lens):
        line.joined(replace(request(length), request_id=number, terms=Terms(account=account)))
    return line


def test_a_full_queue_names_the_time_until_it_has_room(admission: Admission) -> None:
    admission.check(request(), num_waiting=3)
    with pytest.raises(Overloaded, match="4 requests are waiting") as full:
        admission.check(request(), num_waiting=4)
    assert (full.value.retry_after_s, full.value.reason) == (5.0, "requests")


def test_the_queue_may_be_full_of_tokens() -> None:
    # the pool has 40, and twice as many may wait
    line = waiting(30, 30, 10)
    admission = Admission(replace(engine_config(), max_waiting_tokens=0), CAPACITY, line)
    admission.check(request(10), num_waiting=3)
    with pytest.raises(Overloaded, match="70 tokens are waiting and at most 80"):
        admission.check(request(11), num_waiting=3)
    few = replace(engine_config(), max_waiting_tokens=20)
    Admission(few, CAPACITY, waiting()).check(request(30), num_waiting=0)
    with pytest.raises(Overloaded, match="at most 20") as full:
        Admission(few, CAPACITY, line).check(request(1), num_waiting=3)
    assert full.value.reason == "tokens"


def test_an_account_may_take_its_share_of_the_queue() -> None:
    line = waiting(1, 1, account=b"key")
    admission = Admission(engine_config(max_num_waiting=4), CAPACITY, line)
    half = replace(request(), terms=Terms(account=b"key", queue_share=0.5))
    with pytest.raises(Overloaded, match="2 requests of this API key are waiting") as full:
        admission.check(half, num_waiting=2)
    assert full.value.reason == "share"
    admission.check(replace(half, terms=Terms(account=b"other", queue_share=0.5)), num_waiting=2)
    # the least that a share can be is one request
    small = replace(half, terms=Terms(account=b"other", queue_share=0.01))
    admission.check(small, num_waiting=2)


def test_a_long_prompt_says_nothing_of_the_room_for_others() -> None:
    config = replace(engine_config(), max_waiting_tokens=0)
    admission = Admission(config, CAPACITY, waiting(30, 10, 10, 10))
    with pytest.raises(Overloaded):
        admission.check(request(21), num_waiting=4)
    # 20 tokens, and those that wait have 15
    assert admission.room(request(21), num_waiting=4) == 0
    assert admission.room(request(5), num_waiting=4) == 3
    priorities = engine_config().with_options(queue_policy="priority")
    assert Admission(priorities, CAPACITY, waiting(1)).room(request(1), num_waiting=1) == -1


def test_who_would_wait_for_too_long_is_refused_at_once(admission: Admission) -> None:
    patient = replace(request(), terms=Terms(max_wait_s=5.0))
    admission.check(patient, num_waiting=0)
    hasty = replace(request(), terms=Terms(max_wait_s=4.5))
    with pytest.raises(Overloaded, match=r"would wait for about 5 s and may for 4\.5") as refused:
        admission.check(hasty, num_waiting=0)
    assert (refused.value.retry_after_s, refused.value.reason) == (5.0, "wait")


@pytest.mark.parametrize(
    ("changes", "num_waiting", "room"),
    [
        ({"max_num_waiting": 9}, 5, 3),
        ({"max_num_waiting": 9}, 9, 0),
        ({"max_waiting_tokens": 40}, 2, 4),
        ({"max_num_waiting": 20}, 2, 6),
    ],
)
def test_a_replica_knows_how_many_more_it_would_accept(
    changes: dict[str, int], num_waiting: int, room: int
) -> None:
    config = engine_config().with_options(**changes)
    admission = Admission(config, CAPACITY, waiting(10, 10))
    terms = Terms(account=b"key", queue_share=0.35 if config.max_num_waiting == 20 else 1.0)
    assert admission.room(replace(request(4), terms=terms), num_waiting=num_waiting) == room


def test_the_queue_is_never_too_full_for_what_another_engine_has_begun(
    admission: Admission,
) -> None:
    begun = replace(request(), progress=Progress())
    admission.check(begun, num_waiting=1000)
    with pytest.raises(Overloaded):
        admission.check(request(), num_waiting=1000)
    with pytest.raises(PromptTooLong):
        admission.check(replace(request(200), progress=Progress()), num_waiting=0)


def test_tokens_that_the_model_does_not_have_are_refused(admission: Admission) -> None:
    size = engine_config().model.num_choices
    for token, is_known in ((size - 1, True), (size, False)):
        tokens = int32([1, token])
        for progress in (Progress(tokens=tokens), Progress(search=SearchSteps(tokens=tokens))):
            begun = replace(request(), progress=progress)
            if is_known:
                admission.check(begun, num_waiting=0)
                continue
            with pytest.raises(InvalidRequest, match=f"{size} is no token"):
                admission.check(begun, num_waiting=0)
