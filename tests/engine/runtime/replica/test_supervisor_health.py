"""What becomes of requests, clients and pins when the gang of a replica is lost."""

from dataclasses import replace

import pytest
from ray.exceptions import RayActorError

from engine.errors import EngineError
from engine.executor.channel import ChannelClosed
from engine.runtime.messages import PINS, PREFIXES
from engine.types import FinishReason, PinnedPrefix, Request, int32
from tests.fakes.engine_handle import STATS
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.scripted_gang import LIMITS, Replica

NONE, LENGTH = FinishReason.NONE, FinishReason.LENGTH
CRASHED, LOST = FinishReason.CRASHED, FinishReason.LOST


def pinned(name: str, expires_s: float | None = None) -> PinnedPrefix:
    return PinnedPrefix(
        salt=b"one",
        name=name,
        tokens=int32([1, 2, 3, 4]),
        num_blocks=1,
        is_warm=True,
        expires_s=expires_s,
    )


def code_of(replica: Replica, request_id: int) -> str | None:
    refusal = replica.submit(1, request_id).refusal
    return None if refusal is None else refusal.code


async def lose(replica: Replica, clock: LoopClock) -> None:
    """Have the scheduler vanish, and wait until there is another gang."""
    replica.gang.scheduler.close()
    await replace_gang(clock)


async def replace_gang(clock: LoopClock) -> None:
    """Let the time pass until a gang that was lost early is replaced."""
    for _ in range(2):
        await clock.advance(1.0)


async def test_the_death_of_the_scheduler_crashes_every_open_choice(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    for client, request_id, n in ((1, 7, 2), (2, 8, 1), (3, 9, 1)):
        replica.submit(client, request_id, n=n)
    readers = [replica.read(client) for client in (1, 2, 3)]
    await replica.step((7, 5, LENGTH, 0), (9, 5, LENGTH))
    await lose(replica, clock)
    assert [reader.rows for reader in readers] == [
        [(7, 0, 5, LENGTH), (7, 1, -1, CRASHED)],
        [(8, 0, -1, CRASHED)],
        [(9, 0, 5, LENGTH)],
    ]
    # whose requests had all ended hears nothing
    assert readers[2].batches == [[[9]]]
    supervisor = replica.supervisor
    assert (supervisor.num_open, supervisor.num_open_choices) == (0, 0)
    assert caplog.text.count("gang_lost replica=a open=2") == caplog.text.count("gang_lost") == 1


async def test_what_the_last_output_does_not_name_is_lost(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica.submit(1, 7, n=2)
    replica.submit(1, 8)
    reader = replica.read(1)
    await replica.step((7, 5, LENGTH, 0))
    replica.gang.running = [(7, -1, CRASHED, 1)]
    replica.gang.speak("rank 0 failed in step 3: ValueError: a bug")
    await clock.advance(1.0)
    assert reader.rows == [(7, 0, 5, LENGTH), (7, 1, -1, CRASHED), (8, 0, -1, LOST)]
    assert "open=1 reason=rank 0 failed in step 3: ValueError: a bug" in caplog.text
    assert not replica.gangs[0].are_ranks_killed


async def test_a_dead_rank_lets_the_scheduler_name_what_ran(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica.submit(1, 7)
    replica.submit(1, 8)
    reader = replica.read(1)
    await settle()
    replica.gang.running = [(7, -1, CRASHED)]
    replica.gang.die("rank 1")
    for _ in range(2):
        await clock.advance(0.1)
    assert replica.gangs[0].are_ranks_killed
    assert reader.rows == [(7, 0, -1, CRASHED), (8, 0, -1, LOST)]
    assert "reason=rank 1 died: killed by the test" in caplog.text


async def test_a_scheduler_that_says_nothing_is_not_waited_for(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    await settle()
    replica.gang.die("rank 1")
    await clock.advance(0.1)
    await clock.advance(1.0)
    assert (reader.rows, len(replica.gangs)) == ([], 1)
    await clock.advance(1.5)
    assert reader.rows == [(7, 0, -1, CRASHED)]
    await clock.advance(1.0)
    assert len(replica.gangs) == 2


async def test_a_scheduler_that_sends_junk_counts_as_dead(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    replica.gang.scheduler.send(b"junk")
    await clock.advance(1.0)
    assert reader.rows == [(7, 0, -1, CRASHED)]
    assert replica.gangs[0].is_closed


async def test_requests_are_refused_until_another_gang_is_ready(
    replica: Replica, clock: LoopClock
) -> None:
    replica.making_ready.clear()
    await replica.step(stats=replace(STATS, num_running=3))
    replica.gang.die("rank 0")
    await settle()
    assert not replica.supervisor.is_healthy
    assert code_of(replica, 7) == "engine_unavailable"
    await replace_gang(clock)
    # the next gang is there, but it has not made its first token
    assert len(replica.gangs) == 2
    assert replica.supervisor.stats.num_running == 0
    assert code_of(replica, 7) == "engine_unavailable"
    # Serve is not to do anything
    replica.supervisor.check_health()
    assert replica.commands() == []
    replica.making_ready.set()
    await settle()
    assert replica.supervisor.is_healthy
    assert code_of(replica, 7) is None
    [command] = replica.commands()
    assert isinstance(command, Request)
    assert command.request_id == 7
    assert replica.made_ready == [True, False]


async def test_what_the_replica_asks_for_itself_makes_a_new_gang_ready(
    replica: Replica, clock: LoopClock
) -> None:
    replica.making_ready.clear()
    replica.gang.die("rank 0")
    await settle()
    # between two gangs there is none to ask
    assert replica.submit(1, 6, is_own=True).refusal is not None
    await replace_gang(clock)
    assert replica.submit(1, 7, is_own=True).refusal is None
    assert replica.supervisor.num_open == 1
    reader = replica.read(1)
    await replica.step((7, 5, LENGTH))
    assert reader.rows == [(7, 0, 5, LENGTH)]
    replica.making_ready.set()


async def test_sessions_and_leases_outlive_the_gang(replica: Replica, clock: LoopClock) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    await lose(replica, clock)
    assert not reader.has_ended
    replica.submit(1, 8)
    for _ in range(3):
        await clock.advance(0.8 * LIMITS.lease_s)
        replica.supervisor.renew(1, reader.num_bytes)
    await replica.step((8, 5, LENGTH))
    assert reader.rows == [(7, 0, -1, CRASHED), (8, 0, 5, LENGTH)]
    await clock.advance(2 * LIMITS.idle_s)
    assert (reader.has_ended, reader.error) == (True, None)


async def test_pins_are_listed_as_cold_until_they_are_pinned_again(
    replica: Replica, clock: LoopClock
) -> None:
    replica.making_ready.clear()
    supervisor = replica.supervisor
    ends = (None, clock.now_s + 9.0, clock.now_s + 0.5)
    await replica.step(pinned=tuple(map(pinned, "abc", ends)))
    assert supervisor.missing_pins() == []
    await lose(replica, clock)
    # a tenant gives one up meanwhile, the time of another is over
    supervisor.release_prefix(b"one", "a")
    listed = PREFIXES.decode(supervisor.prefixes(b"one"))
    assert [(info.name, info.is_warm) for info in listed] == [("b", False)]
    [missing] = supervisor.missing_pins()
    assert (missing.name, missing.salt, missing.token_ids) == ("b", b"one", (1, 2, 3, 4))
    assert missing.ttl_s == pytest.approx(7.0)
    await replica.step(pinned=(pinned("b", clock.now_s + 7.0),))
    assert supervisor.missing_pins() == []
    replica.making_ready.set()
    await settle()
    assert [pin.name for pin in PINS.decode(supervisor.pins())] == ["b"]


async def test_a_replica_without_a_gang_has_serve_replace_it(
    replica: Replica, clock: LoopClock
) -> None:
    replica.failures = [EngineError("rank 1 died while it loaded: no memory")] * 3
    await lose(replica, clock)
    replica.supervisor.check_health()
    await clock.advance(1.0)
    await clock.advance(2.0)
    with pytest.raises(RayActorError, match="rank 1 died while it loaded: no memory"):
        replica.supervisor.check_health()
    with pytest.raises(EngineError, match="no memory"):
        replica.submit(1, 10)
    assert not replica.supervisor.is_healthy


async def test_closing_ends_the_processes_and_the_streams(
    clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica = await Replica.started()
    replica.submit(1, 7)
    reader = replica.read(1)
    await settle()
    replica.commands()
    await replica.supervisor.close()
    await settle()
    assert "has been stopped" in str(reader.error)
    assert replica.gang.is_closed
    with pytest.raises(ChannelClosed):
        replica.commands()
    with pytest.raises(EngineError, match="are gone"):
        replica.submit(1, 8)
    with pytest.raises(RayActorError, match="has been stopped"):
        replica.supervisor.check_health()
    assert (replica.supervisor.num_open, replica.supervisor.num_open_choices) == (0, 0)
    # nor does a lease run out after the end
    await clock.advance(2 * LIMITS.lease_s)
    assert caplog.text == ""


async def test_every_request_leaves_the_deadline_of_a_step_as_it_is(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    replica.read(1)
    for request_id in range(8, 8 + 20):
        replica.submit(1, request_id)
        replica.supervisor.renew(1, 0)
        await clock.advance(2.0)
    assert len(replica.gangs) > 1


async def test_the_counts_of_a_lost_gang_are_gone(replica: Replica, clock: LoopClock) -> None:
    replica.starting.clear()
    await replica.step(stats=replace(STATS, num_running=3))
    await lose(replica, clock)
    assert replica.supervisor.stats.num_running == 0
    replica.starting.set()


async def test_what_waited_at_a_lost_gang_and_what_it_had_cached_is_no_load_any_more(
    replica: Replica, clock: LoopClock
) -> None:
    meter = replica.supervisor.meter
    replica.submit(1, 7, prompt_len=30)
    await replica.step(prefix_marks=b"mark")
    assert (meter.waiting_tokens, meter.report().marks) == (30, b"mark")
    await lose(replica, clock)
    assert (meter.waiting_tokens, meter.report().marks) == (0, b"")
    assert replica.supervisor.meter is meter
