"""When a request is tried again, and when it is given up."""

import pytest

from engine.config import ResumeConfig
from engine.errors import EngineError, EngineUnavailable, RequestCrashes
from engine.runtime.client.retries import (
    FIRST_DELAY_S,
    MAX_DELAY_S,
    PROBATION_TOKENS,
    TO_THE_END,
    WAITS_PER_RESUME,
    Retries,
)
from engine.types import FinishReason

GONE = EngineError("gone")
LOST, CRASHED, SOLO = FinishReason.LOST, FinishReason.CRASHED, FinishReason.CRASHED_SOLO


def retries(**options: float) -> Retries:
    config = ResumeConfig(resume_timeout_s=60.0, max_resumes=int(options.get("max_resumes", 9)))
    return Retries(config, 7, 100.0)


def test_delays_grow_up_to_a_limit_and_end_in_time() -> None:
    tries = retries()
    delays = [tries.delay_s(100.0, GONE) for _ in range(8)]
    limits = [min(FIRST_DELAY_S * 2**index, MAX_DELAY_S) for index in range(8)]
    for delay, limit in zip(delays, limits, strict=True):
        assert limit / 2 <= delay <= limit
    assert tries.delay_s(159.9, GONE) <= 0.1 + 1e-9
    with pytest.raises(EngineError, match="request 7 for 60 s: gone"):
        tries.delay_s(160.0, GONE)


def test_who_has_to_give_up_hears_when_a_replica_will_be_ready() -> None:
    with pytest.raises(EngineUnavailable, match="request 7 for 60 s: rebuilding") as caught:
        retries().delay_s(160.0, EngineUnavailable("rebuilding", retry_after_s=9.0))
    assert caught.value.retry_after_s == 9.0


def test_requests_that_were_lost_together_come_back_one_after_the_other() -> None:
    assert len({retries().delay_s(100.0, GONE) for _ in range(8)}) > 1


def test_a_replica_that_says_when_it_will_be_ready_is_not_asked_much_earlier() -> None:
    soon = EngineUnavailable("rebuilding", retry_after_s=1.0)
    assert 0.5 <= retries().delay_s(100.0, soon) <= 1.0
    # another one may be ready before
    late = EngineUnavailable("rebuilding", retry_after_s=1000.0)
    assert retries().delay_s(100.0, late) <= MAX_DELAY_S


def test_each_loss_begins_a_new_time() -> None:
    tries = retries()
    for _ in range(8):
        tries.delay_s(100.0, GONE)
    tries.engine_lost(500.0, GONE)
    assert tries.delay_s(501.0, GONE) <= FIRST_DELAY_S
    with pytest.raises(EngineError, match="for 60 s"):
        tries.delay_s(560.0, GONE)


@pytest.mark.parametrize("max_resumes", [0, 3])
@pytest.mark.parametrize("reason", [None, CRASHED])
def test_engines_are_lost_at_most_so_often(max_resumes: int, reason: FinishReason | None) -> None:
    tries = retries(max_resumes=max_resumes)
    for count in range(max_resumes):
        tries.engine_lost(0.0, GONE, reason)
        assert tries.num_lost == count + 1
    with pytest.raises(EngineError, match="gone"):
        tries.engine_lost(0.0, GONE, reason)


def test_losses_before_which_it_only_waited_count_little_but_have_an_end() -> None:
    tries = retries(max_resumes=2)
    tries.engine_lost(0.0, GONE)
    for _ in range(WAITS_PER_RESUME):
        tries.engine_lost(0.0, GONE, LOST)
    with pytest.raises(EngineError, match=f"engine {WAITS_PER_RESUME + 2} times: gone"):
        tries.engine_lost(0.0, GONE, LOST)
    with pytest.raises(EngineError, match="gone"):
        retries(max_resumes=0).engine_lost(0.0, GONE, LOST)


def test_the_second_crash_is_followed_by_probation_and_a_further_one_by_a_longer_one() -> None:
    tries = retries()
    solo_tokens = []
    for reason in (LOST, CRASHED, None, LOST, CRASHED, LOST, CRASHED, CRASHED):
        tries.engine_lost(0.0, GONE, reason)
        solo_tokens.append(tries.solo_tokens)
    assert solo_tokens == [0, 0, 0, 0, PROBATION_TOKENS, PROBATION_TOKENS, TO_THE_END, TO_THE_END]


def test_who_ends_an_engine_with_nothing_beside_it_is_given_up_by_name() -> None:
    tries = retries()
    for _ in range(2):
        tries.engine_lost(0.0, GONE, CRASHED)
    with pytest.raises(RequestCrashes, match="request 7 was in the batch of 3 engines"):
        tries.engine_lost(0.0, GONE, SOLO)
