import pytest
from ray.exceptions import RayActorError

from engine.errors import EngineError
from engine.executor.channel import ChannelClosed
from engine.types import FinishReason
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.scripted_gang import LIMITS, STEP_DEADLINE_S, Replica

NONE, LENGTH, ERROR = FinishReason.NONE, FinishReason.LENGTH, FinishReason.ERROR


async def test_a_hang_is_a_silent_scheduler_while_requests_are_open(
    replica: Replica, clock: LoopClock
) -> None:
    supervisor = replica.supervisor
    replica.read(1)
    await clock.advance(2 * STEP_DEADLINE_S)
    assert supervisor.is_healthy
    # the first request after a pause has the whole time, the second does not begin it anew
    replica.submit(1, 7)
    await clock.advance(0.75 * STEP_DEADLINE_S)
    replica.submit(1, 8)
    assert supervisor.is_healthy
    await replica.step((7, 5, NONE))
    await clock.advance(STEP_DEADLINE_S)
    replica.submit(1, 9)
    assert supervisor.is_healthy
    await clock.advance(0.1)
    assert not supervisor.is_healthy


async def test_the_health_check_asks_every_process(replica: Replica) -> None:
    await replica.supervisor.check_health()
    assert replica.gang.num_pings == 1
    assert not replica.gang.is_closed


async def test_the_health_check_ends_a_gang_that_hangs(replica: Replica, clock: LoopClock) -> None:
    replica.submit(1, 7)
    await clock.advance(STEP_DEADLINE_S + 0.1)
    replica.commands()
    with pytest.raises(EngineError, match="have died"):
        await replica.supervisor.check_health()
    assert replica.gang.is_closed
    with pytest.raises(ChannelClosed):
        replica.commands()


async def test_the_health_check_ends_a_gang_with_a_dead_process(replica: Replica) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    replica.gang.is_dead = True
    with pytest.raises(RayActorError):
        await replica.supervisor.check_health()
    await settle()
    assert reader.rows == [(7, 0, -1, ERROR)]
    assert replica.gang.is_closed


async def test_the_end_of_the_scheduler_fails_every_open_choice(
    clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica()
    for client, request_id, n in ((1, 7, 2), (2, 8, 1), (3, 9, 1)):
        replica.submit(client, request_id, n=n)
    readers = [replica.read(client) for client in (1, 2, 3)]
    await replica.step((7, 5, LENGTH, 0), (9, 5, LENGTH))
    replica.gang.scheduler.close()
    await settle()
    assert [reader.rows for reader in readers] == [
        [(7, 0, 5, LENGTH), (7, 1, -1, ERROR)],
        [(8, 0, -1, ERROR)],
        [(9, 0, 5, LENGTH)],
    ]
    # whose requests had all ended hears nothing
    assert readers[2].batches == [[[9]]]
    supervisor = replica.supervisor
    assert (supervisor.num_open, supervisor.num_open_choices) == (0, 0)
    assert not supervisor.is_healthy
    assert replica.gang.is_closed
    with pytest.raises(EngineError, match="have died"):
        replica.submit(1, 10)
    with pytest.raises(EngineError, match="have died"):
        await supervisor.check_health()
    assert caplog.text.count("gang_lost replica=a open=2") == caplog.text.count("gang_lost") == 1
    # nothing is open: the streams end as idle ones do
    await clock.advance(2 * LIMITS.idle_s)
    assert all(reader.has_ended and reader.error is None for reader in readers)
    replica.close()


async def test_a_scheduler_that_sends_junk_counts_as_dead(replica: Replica) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    replica.gang.scheduler.send(b"junk")
    await settle()
    assert reader.rows == [(7, 0, -1, ERROR)]
    assert replica.gang.is_closed


async def test_closing_ends_the_processes_and_the_streams(
    clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica()
    replica.submit(1, 7)
    reader = replica.read(1)
    await settle()
    replica.commands()
    replica.supervisor.close()
    await settle()
    assert "has been stopped" in str(reader.error)
    assert replica.gang.is_closed
    with pytest.raises(ChannelClosed):
        replica.commands()
    with pytest.raises(EngineError, match="have died"):
        replica.submit(1, 8)
    assert (replica.supervisor.num_open, replica.supervisor.num_open_choices) == (0, 0)
    # nor does a lease run out after the end
    await clock.advance(2 * LIMITS.lease_s)
    assert caplog.text == ""
    replica.close()
