from dataclasses import replace

import pytest

from engine.config import QueuePolicy
from engine.errors import InvalidRequest, Overloaded, PromptTooLong
from engine.runtime.flow.waiting_line import WaitingLine
from engine.runtime.messages import Verdict
from engine.runtime.replica.admission import Admission
from engine.types import (
    Capacity,
    Progress,
    Refusal,
    Request,
    SamplingParams,
    SearchSteps,
    Terms,
    int32,
)
from tests.fakes.scripted_worker import engine_config

CAPACITY = Capacity(num_blocks=10, block_size=4, num_rows=4)


class FixedLine(WaitingLine):
    """A line in which every request waits for 5 seconds."""

    def wait_s(self, terms: Terms) -> float:
        return 5.0

    def opens_per_s(self, request: Request) -> float:
        return 8.0


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


def waiting(*lens: int, account: bytes = b"", policy: QueuePolicy = "fair") -> FixedLine:
    line = FixedLine(policy, 4, lambda: 0.0)
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


def test_accounts_that_wait_share_the_queue_by_their_weights() -> None:
    line = waiting(*[1] * 8, account=b"first")
    admission = Admission(engine_config(max_num_waiting=8), CAPACITY, line)
    first = replace(request(), terms=Terms(account=b"first"))
    later = replace(request(), terms=Terms(account=b"later", weight=3.0))
    # nobody else waited: it has all
    with pytest.raises(Overloaded, match="8 requests are waiting and at most 8"):
        admission.check(first, num_waiting=8)
    for number in range(6):
        assert admission.room(later, num_waiting=8 + number) == 6 - number
        admission.check(later, num_waiting=8 + number)
        line.joined(replace(later, request_id=100 + number))
    # six of the first must begin before it may have one more
    for each, num, room in ((later, 6, 0), (first, 8, -6)):
        assert admission.room(each, num_waiting=14) == room
        with pytest.raises(Overloaded, match=f"{num} requests of this API key") as full:
            admission.check(each, num_waiting=14)
        assert full.value.reason == "share"
    # as long as another one waits, the first has its share: a quarter
    for number in range(7):
        line.left(number)
    assert admission.room(first, num_waiting=7) == 1
    admission.check(first, num_waiting=7)
    # a third one has its share as well, but all together at most twice the limit
    third = replace(request(), terms=Terms(account=b"third", weight=4.0))
    admission.check(third, num_waiting=15)
    with pytest.raises(Overloaded, match="16 requests are waiting and at most 16"):
        admission.check(third, num_waiting=16)


def test_accounts_that_wait_share_the_tokens_of_the_queue_by_their_weights() -> None:
    config = replace(engine_config(), max_waiting_tokens=40)
    line = waiting(20, 20, account=b"first")
    admission = Admission(config, CAPACITY, line)
    later = replace(request(10), terms=Terms(account=b"later", weight=3.0))
    for number in range(3):
        assert admission.room(later, num_waiting=2) == 30 - 10 * number
        admission.check(later, num_waiting=2)
        line.joined(replace(later, request_id=100 + number))
    with pytest.raises(Overloaded, match=r"30 tokens of this API key are .* at most 30") as full:
        admission.check(later, num_waiting=5)
    assert full.value.reason == "share"
    # one prompt may wait however long it is, but all together have at most twice the limit
    line.left(0)
    third = replace(request(30), terms=Terms(account=b"third"))
    admission.check(third, num_waiting=4)
    with pytest.raises(Overloaded, match="50 tokens are waiting and at most 80"):
        admission.check(replace(third, prompt=request(31).prompt), num_waiting=4)


def test_by_another_policy_the_queue_has_no_shares() -> None:
    line = waiting(*[1] * 3, account=b"first", policy="fcfs")
    config = engine_config(max_num_waiting=4).with_options(queue_policy="fcfs")
    later = replace(request(), terms=Terms(account=b"later", weight=3.0))
    line.joined(replace(later, request_id=100))
    with pytest.raises(Overloaded, match="4 requests are waiting and at most 4"):
        Admission(config, CAPACITY, line).check(later, num_waiting=4)
    first = replace(request(), terms=Terms(account=b"first"))
    Admission(config, CAPACITY, line).check(first, num_waiting=3)


def test_a_long_prompt_says_nothing_of_the_room_for_others() -> None:
    config = replace(engine_config(), max_waiting_tokens=0)
    admission = Admission(config, CAPACITY, waiting(30, 10, 10, 10))
    with pytest.raises(Overloaded):
        admission.check(request(21), num_waiting=4)
    # 20 tokens are left, for prompts of which four that wait say nothing
    assert admission.room(request(21), num_waiting=4) == 20
    few = replace(engine_config(), max_waiting_tokens=100)
    admission = Admission(few, CAPACITY, waiting(*[10] * 8))
    assert admission.room(request(21), num_waiting=8) == 2
    assert admission.room(request(5), num_waiting=8) == 4
    priorities = engine_config().with_options(queue_policy="priority")
    assert Admission(priorities, CAPACITY, waiting(1)).room(request(1), num_waiting=1) is None


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
        ({"max_num_waiting": 9}, 5, 4),
        ({"max_num_waiting": 9}, 9, 0),
        ({"max_waiting_tokens": 40}, 2, 20),
        ({"max_num_waiting": 20}, 2, 5),
    ],
)
def test_a_replica_knows_how_many_more_it_would_accept(
    changes: dict[str, int], num_waiting: int, room: int
) -> None:
    config = engine_config().with_options(**changes)
    admission = Admission(config, CAPACITY, waiting(10, 10, account=b"key"))
    terms = Terms(account=b"key", queue_share=0.35 if config.max_num_waiting == 20 else 1.0)
    assert admission.room(replace(request(4), terms=terms), num_waiting=num_waiting) == room


def test_each_client_hears_of_its_part_of_the_places_that_open(admission: Admission) -> None:
    asked = replace(request(), terms=Terms(max_wait_s=60.0))
    single, beside = (
        admission.with_room(Verdict(replica="a"), asked, num_waiting=0, num_clients=number)
        for number in (1, 4)
    )
    assert (single.opens_per_s, beside.opens_per_s) == (8.0, 2.0)
    room = admission.room(asked, num_waiting=0)
    assert room is not None
    # one that is accepted takes a place itself
    assert (single.room, beside.room) == (room - 1, room - 1)
    refusal = Refusal(code="queue_full", message="")
    refused = Verdict(replica="a", refusal=refusal)
    refused = admission.with_room(refused, asked, num_waiting=0, num_clients=1)
    assert (refused.room, refused.refusal) == (room, refusal)
    assert refused.retry_after_s == 5.0


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
