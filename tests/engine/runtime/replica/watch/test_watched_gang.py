"""By which signs the loss of a gang is noticed, and when."""

import pytest

from engine.errors import EngineError
from engine.runtime.replica.watch.watched_gang import DEADLINE_MARGIN_S
from engine.types import FinishReason
from tests.fakes.loop_clock import LoopClock
from tests.fakes.scripted_gang import PING_PERIOD_S, PING_TIMEOUT_S, STEP_DEADLINE_S, Replica

NONE, CRASHED, LOST = FinishReason.NONE, FinishReason.CRASHED, FinishReason.LOST
LIMIT_S = STEP_DEADLINE_S + DEADLINE_MARGIN_S


async def pass_time(clock: LoopClock, seconds: float) -> None:
    """Let the time pass in steps, as it does, so that every timer is served."""
    while seconds > 0:
        await clock.advance(min(0.5, seconds))
        seconds -= 0.5


async def test_an_idle_gang_is_asked_again_and_again(replica: Replica, clock: LoopClock) -> None:
    await pass_time(clock, 10 * PING_PERIOD_S)
    assert 8 <= replica.gang.num_pings <= 10
    assert replica.supervisor.is_healthy


async def test_a_process_that_does_not_answer_counts_as_dead(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica.gang.frozen = "rank 1"
    await pass_time(clock, PING_PERIOD_S + PING_TIMEOUT_S - 0.5)
    assert replica.supervisor.is_healthy
    await pass_time(clock, 0.6)
    assert not replica.supervisor.is_healthy
    await pass_time(clock, 0.5)
    assert "gang_lost replica=a open=0 reason=rank 1 did not answer a ping in 3 s" in caplog.text


async def test_a_silent_scheduler_is_lost_only_while_requests_are_open(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = replica.supervisor
    await pass_time(clock, 2 * LIMIT_S)
    assert (supervisor.is_healthy, len(replica.gangs)) == (True, 1)
    # the first request after a pause has the whole time, the second does not begin it anew
    replica.submit(1, 7)
    replica.read(1)
    await clock.advance(0.5)
    await replica.step((7, 5, NONE))
    replica.submit(1, 8)
    for _ in range(int(2 * LIMIT_S) - 1):
        supervisor.renew(1, 0)
        await clock.advance(0.5)
    assert supervisor.is_healthy
    replica.submit(1, 9)
    await clock.advance(0.6)
    assert not supervisor.is_healthy
    await pass_time(clock, 4.0)
    assert "reason=no step was made in 30 s" in caplog.text


async def test_an_output_is_a_sign_of_life(replica: Replica, clock: LoopClock) -> None:
    replica.submit(1, 7)
    replica.read(1)
    for _ in range(6):
        for _ in range(int(LIMIT_S)):
            replica.supervisor.renew(1, 0)
            await clock.advance(0.5)
        await replica.step((7, 5, NONE))
    assert len(replica.gangs) == 1


async def test_the_owner_s_own_error_is_not_taken_for_a_loss(clock: LoopClock) -> None:
    replica = Replica()

    async def fail(supervisor: object, is_first: bool) -> None:
        raise EngineError("the first step gave no token")

    replica.supervisor._make_ready = fail
    with pytest.raises(EngineError, match="gave no token") as caught:
        await replica.supervisor._keeper._start_one()
    assert type(caught.value) is EngineError
    assert replica.gang.is_closed
    await replica.close()


async def test_what_waited_is_lost_when_the_scheduler_has_named_what_ran(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    replica.submit(1, 8)
    reader = replica.read(1)
    await pass_time(clock, 0.5)
    replica.gang.running = [(7, -1, CRASHED)]
    replica.gang.die("rank 1")
    await pass_time(clock, 3.0)
    assert reader.rows == [(7, 0, -1, CRASHED), (8, 0, -1, LOST)]


async def test_everything_has_crashed_when_the_scheduler_says_nothing(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    await pass_time(clock, 0.5)
    replica.gang.die("the scheduler")
    await pass_time(clock, 3.0)
    assert reader.rows == [(7, 0, -1, CRASHED)]


async def test_a_scheduler_that_is_frozen_is_not_asked_for_its_last_word(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    replica.gang.frozen = "the scheduler"
    await pass_time(clock, PING_PERIOD_S + PING_TIMEOUT_S + 0.5)
    assert reader.rows == [(7, 0, -1, CRASHED)]


async def test_a_gang_that_nobody_watches_any_more_is_lost(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica.gang.ping = None  # type: ignore[assignment,method-assign]
    await pass_time(clock, PING_PERIOD_S + 0.5)
    assert caplog.text.count("gang_watch_failed") == 1
    assert "gang_lost replica=a open=0 reason=the watch has failed: TypeError" in caplog.text
