"""Which states a replica's gang goes through, after how many failures and pauses."""

import asyncio

import pytest

from engine.errors import ConfigError, EngineError, WorkerDied
from engine.runtime.replica.watch.gang_keeper import BACK_OFF_S, STEADY_S, GangKeeper, State
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.scripted_gang import START_DEADLINE_S, Replica

DIED = WorkerDied("rank 1 died while it loaded: no memory")


def keeper_of(replica: Replica) -> GangKeeper:
    return replica.supervisor._keeper


async def lose(replica: Replica, clock: LoopClock) -> None:
    """End a process of the gang, and wait until nothing is left of it."""
    replica.gang.die("rank 0")
    await clock.advance(0.2)


async def test_a_gang_that_is_lost_is_replaced_once_nothing_is_left_of_it(
    replica: Replica, clock: LoopClock
) -> None:
    await clock.advance(STEADY_S)
    replica.gang.closing.clear()
    await lose(replica, clock)
    assert keeper_of(replica).state is State.STARTING
    await clock.advance(60.0)
    assert len(replica.gangs) == 1
    replica.gang.closing.set()
    await settle()
    assert (keeper_of(replica).state, len(replica.gangs)) == (State.SERVING, 2)


async def test_a_start_is_tried_again_and_the_reasons_are_reported(
    clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica()
    replica.failures = [DIED, EngineError("rank 0 failed while it loaded: ValueError: a bug")]
    starting = asyncio.create_task(replica.supervisor.start())
    await clock.advance(BACK_OFF_S)
    assert not starting.done()
    # the second pause is longer
    await clock.advance(1.9 * BACK_OFF_S)
    assert not starting.done()
    await clock.advance(0.2 * BACK_OFF_S)
    await starting
    assert keeper_of(replica).state is State.SERVING
    assert "failure=1 of=3 reason=rank 1 died while it loaded: no memory" in caplog.text
    assert "failure=2 of=3 reason=rank 0 failed while it loaded: ValueError" in caplog.text
    await replica.close()


async def test_a_start_ends_with_the_last_reason_when_its_attempts_are_used_up(
    clock: LoopClock,
) -> None:
    replica = Replica()
    replica.failures = [EngineError("first"), EngineError("second"), DIED, None]
    starting = asyncio.create_task(replica.supervisor.start())
    for _ in range(4):
        await clock.advance(10.0)
    with pytest.raises(EngineError, match=r"^rank 1 died while it loaded: no memory; .*3 in a row"):
        await starting
    assert replica.gangs == []
    await replica.close()


async def test_what_is_raised_on_purpose_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = Replica()
    replica.failures = [ConfigError("no weights here"), None]
    with pytest.raises(ConfigError, match=r"^no weights here$"):
        await replica.supervisor.start()
    assert replica.gangs == []
    assert caplog.text == ""
    await replica.close()


async def test_a_start_has_a_deadline(clock: LoopClock, caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica()
    replica.starting.clear()
    starting = asyncio.create_task(replica.supervisor.start())
    await clock.advance(START_DEADLINE_S + 0.1)
    assert f"were not ready after {START_DEADLINE_S:g} s" in caplog.text
    replica.starting.set()
    replica.making_ready.clear()
    await clock.advance(BACK_OFF_S)
    # a gang that never becomes ready is ended
    await clock.advance(START_DEADLINE_S + 0.1)
    assert replica.gang.is_closed
    replica.making_ready.set()
    await clock.advance(3 * BACK_OFF_S)
    await starting
    assert len(replica.gangs) == 2
    await replica.close()


async def test_a_gang_that_is_lost_before_it_is_ready_is_replaced(
    clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica()
    replica.making_ready.clear()
    starting = asyncio.create_task(replica.supervisor.start())
    await settle()
    await lose(replica, clock)
    assert replica.gangs[0].is_closed
    assert "gang_start_failed" in caplog.text
    assert "reason=rank 0 died: killed by the test" in caplog.text
    assert "gang_lost" not in caplog.text
    replica.making_ready.set()
    await clock.advance(BACK_OFF_S)
    await starting
    # the first that was ready
    assert replica.made_ready == [True]
    await replica.close()


async def test_gangs_that_die_soon_after_their_start_count_as_failures(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await lose(replica, clock)
        assert keeper_of(replica).state is State.STARTING
        await clock.advance(2 * BACK_OFF_S)
        assert keeper_of(replica).state is State.SERVING
    await lose(replica, clock)
    assert (keeper_of(replica).state, len(replica.gangs)) == (State.LOST, 3)
    assert replica.gang.is_closed
    assert caplog.text.count("replica_lost replica=a reason=rank 0 died: killed by the test") == 1


async def test_a_gang_that_has_served_for_a_while_clears_the_account(
    replica: Replica, clock: LoopClock
) -> None:
    for _ in range(5):
        await clock.advance(STEADY_S)
        await lose(replica, clock)
        # and it is replaced without a pause
        assert keeper_of(replica).state is State.SERVING
    assert len(replica.gangs) == 6


async def test_a_mistake_of_our_own_ends_the_replica_too(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    await clock.advance(STEADY_S)
    replica.failures = [ZeroDivisionError("a bug")]
    await lose(replica, clock)
    assert keeper_of(replica).state is State.LOST
    assert caplog.text.count("gang_keeper_failed") == 1


async def test_a_retry_is_worth_it_when_a_start_would_be_over(clock: LoopClock) -> None:
    replica = Replica()
    replica.starting.clear()
    starting = asyncio.create_task(replica.supervisor.start())
    await clock.advance(20.0)
    replica.starting.set()
    await starting
    await clock.advance(STEADY_S)
    replica.starting.clear()
    await lose(replica, clock)
    await clock.advance(5.0)
    assert keeper_of(replica).retry_after_s == pytest.approx(15.0)
    await clock.advance(30.0)
    assert keeper_of(replica).retry_after_s == 1.0
    await replica.close()


async def test_closing_while_a_gang_starts_leaves_nothing(
    replica: Replica, clock: LoopClock
) -> None:
    await clock.advance(STEADY_S)
    replica.making_ready.clear()
    await lose(replica, clock)
    assert len(replica.gangs) == 2
    before = keeper_of(replica).state
    await replica.supervisor.close()
    assert (before, keeper_of(replica).state) == (State.STARTING, State.CLOSED)
    assert all(gang.is_closed for gang in replica.gangs)
