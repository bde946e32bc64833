import asyncio
from dataclasses import replace

import pytest

from engine.runtime.messages import (
    OUTPUTS,
    PINS,
    PREFIXES,
    REPLICA_VIEWS,
    EngineQuestion,
    Withdrawal,
)
from engine.types import ALL_CHOICES, FinishReason, PinnedPrefix, Request, Terms, int32, int64
from tests.fakes.engine_handle import STATS, tokens_output
from tests.fakes.loop_clock import LoopClock, settle
from tests.fakes.scripted_gang import LIMITS, Replica
from tests.fakes.scripted_worker import engine_config

MAX_NUM_SEQS = engine_config().max_num_seqs
NONE, LENGTH, ERROR = FinishReason.NONE, FinishReason.LENGTH, FinishReason.ERROR


async def test_an_accepted_request_goes_to_the_scheduler_and_is_open(replica: Replica) -> None:
    verdict = replica.submit(1, 7, n=3)
    assert (verdict.replica, verdict.refusal) == ("a", None)
    [command] = replica.commands()
    assert isinstance(command, Request)
    assert (command.request_id, command.sampling.n) == (7, 3)
    supervisor = replica.supervisor
    assert (supervisor.replica, supervisor.num_open, supervisor.num_open_choices) == ("a", 1, 3)


async def test_a_view_is_asked_of_the_scheduler_and_is_no_step(replica: Replica) -> None:
    replica.submit(1, 7)
    replica.commands()
    await replica.step((7, 5, NONE))
    before = {(s.name, s.labels): s.value for s in replica.supervisor.series()}
    looking = asyncio.create_task(replica.supervisor.view(0))
    await settle()
    assert replica.commands() == [EngineQuestion.SNAPSHOT]
    replica.gang.scheduler.send(OUTPUTS.encode(replace(tokens_output([]), snapshot=b"seen")))
    view = REPLICA_VIEWS.decode(await looking)
    assert (view.replica, view.is_ready, view.snapshot) == ("a", True, b"seen")
    after = {(s.name, s.labels): s.value for s in replica.supervisor.series()}
    changed = {name for name, _ in before if before[name, _] != after[name, _]}
    assert changed <= {"step_age_seconds"}


async def test_a_refused_request_never_reaches_the_scheduler(replica: Replica) -> None:
    verdict = replica.submit(1, 7, prompt_len=500)
    assert verdict.replica == "a"
    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.refusal.got) == ("context_length_exceeded", 500)
    assert replica.commands() == []
    assert replica.supervisor.num_open == 0


async def test_an_id_that_is_open_is_refused(replica: Replica) -> None:
    assert replica.submit(1, 7).refusal is None
    refusal = replica.submit(2, 7).refusal
    assert refusal is not None
    assert "open already" in refusal.message
    assert len(replica.commands()) == 1
    await replica.step((7, 5, LENGTH))
    assert replica.submit(2, 7).refusal is None


async def pace(replica: Replica, clock: LoopClock) -> None:
    """Let 200 requests begin, one in each second, while another one waits; all end at once."""
    busy = replace(STATS, num_running=MAX_NUM_SEQS, num_waiting=1)
    await replica.step(stats=busy)
    for request_id in range(1000, 1200):
        replica.submit(1, request_id)
        await clock.advance(1.0)
        await replica.step((request_id, 5, LENGTH), stats=busy)
    await replica.step(stats=STATS)


async def test_a_full_queue_is_refused_with_the_time_until_what_waits_has_begun(
    clock: LoopClock,
) -> None:
    replica = await Replica.started(max_num_waiting=5)
    replica.read(1)
    await pace(replica, clock)
    # one of them is in the batch
    await replica.step(stats=replace(STATS, num_running=1))
    for request_id in range(6):
        assert replica.submit(1, request_id).refusal is None
    assert replica.supervisor.num_waiting == 5
    verdict = replica.submit(1, 6)
    assert verdict.refusal is not None
    assert verdict.refusal.code == "queue_full"
    assert verdict.refusal.retry_after_s == pytest.approx(6.0, rel=0.1)
    refusals = {
        series.labels: series.value
        for series in replica.supervisor.series()
        if series.name.endswith("refusals_total")
    }
    assert (refusals[("requests",)], refusals[("wait",)]) == (1, 0)
    # the one in the batch has had no output yet
    assert verdict.room == -1
    # those that know of it say the same, and when one more has its place
    assert verdict.retry_after_s == verdict.refusal.retry_after_s
    assert verdict.opens_per_s == pytest.approx(1.0, rel=0.1)
    await replica.close()


async def test_who_would_wait_too_long_is_refused_and_others_know_the_room(
    clock: LoopClock,
) -> None:
    replica = await Replica.started()
    replica.read(1)
    await pace(replica, clock)
    terms = Terms(account=b"key", max_wait_s=10.0)
    verdicts = [replica.submit(1, request_id, terms=terms) for request_id in range(12)]
    assert [verdict.refusal is None for verdict in verdicts] == [True] * 11 + [False]
    assert verdicts[1].room is not None
    assert 7 <= verdicts[1].room <= 9
    assert verdicts[9].room == 0
    # another account has a queue of its own
    assert replica.submit(1, 20, terms=replace(terms, account=b"other")).refusal is None
    # and a client that goes away leaves room
    await clock.advance(LIMITS.lease_s + 1.0)
    assert replica.supervisor.num_open == 0
    assert replica.submit(2, 21, terms=terms).refusal is None
    await replica.close()


async def test_a_request_that_has_waited_too_long_is_refused_after_all(replica: Replica) -> None:
    replica.submit(1, 7)
    reader = replica.read(1)
    await replica.step((7, -1, FinishReason.EXPIRED))
    [(request_id, refusal)] = reader.refusals
    assert (request_id, refusal.code, refusal.retry_after_s) == (7, "queue_full", 1.0)
    assert replica.supervisor.num_open == 0


async def test_each_client_gets_its_own_rows(replica: Replica) -> None:
    replica.submit(1, 7)
    replica.submit(2, 8)
    first, second = replica.read(1), replica.read(2)
    await replica.step((7, 5, NONE), (8, 6, LENGTH), (9, 4, NONE))
    assert first.rows == [(7, 0, 5, NONE)]
    assert second.rows == [(8, 0, 6, LENGTH)]


async def test_a_request_is_open_until_its_last_choice_has_ended(replica: Replica) -> None:
    replica.submit(1, 7, n=2)
    supervisor = replica.supervisor
    await replica.step((7, 5, NONE, 0), (7, 5, LENGTH, 1))
    assert (supervisor.num_open, supervisor.num_open_choices) == (1, 1)
    await replica.step((7, 5, LENGTH, 0))
    assert (supervisor.num_open, supervisor.num_open_choices) == (0, 0)


async def test_counts_are_those_of_the_latest_step(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    assert replica.supervisor.stats.usage.total == 256
    await replica.step(stats=replace(STATS, num_running=3, num_recomputed=1))
    assert replica.supervisor.stats.num_running == 3
    assert replica.supervisor.num_waiting == 0
    assert "preemptions recomputed=1" in caplog.text


async def test_the_load_is_that_of_requests_without_output(
    clock: LoopClock, replica: Replica
) -> None:
    meter = replica.supervisor.meter
    replica.submit(1, 7, prompt_len=30)
    replica.submit(1, 8, prompt_len=50)
    assert meter.waiting_tokens == 80
    await replica.step((7, 5, NONE), stats=replace(STATS, elapsed_s=0.5), prefix_marks=b"mark")
    assert (meter.waiting_tokens, meter.tokens_per_s) == (50, 60.0)
    assert meter.report().marks == b"mark"
    # a client that is given up waits for nothing
    await clock.advance(LIMITS.lease_s)
    assert meter.waiting_tokens == 0


def _num_lost(replica: Replica) -> float:
    named = (each for each in replica.supervisor.series() if each.name == "client_lost_total")
    return sum(each.value for each in named)


async def test_a_client_that_vanishes_without_a_request_is_no_loss(
    replica: Replica, clock: LoopClock
) -> None:
    replica.submit(1, 7)
    replica.read(1)
    await replica.step((7, 1, LENGTH))
    await clock.advance(2 * LIMITS.lease_s)
    assert _num_lost(replica) == 0


async def test_a_client_that_vanishes_has_its_requests_aborted(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica.submit(1, 7, n=3)
    replica.submit(1, 8)
    replica.submit(2, 9)
    replica.commands()
    vanished, other = replica.read(1), replica.read(2)
    await clock.advance(0.8 * LIMITS.lease_s)
    replica.supervisor.renew(2, 0)
    await clock.advance(0.4 * LIMITS.lease_s)
    assert replica.commands() == [Withdrawal(int64([7, 8]), int32([ALL_CHOICES] * 2))]
    assert "given up this client: it was silent" in str(vanished.error)
    assert caplog.text.count("client_lost client=1 reason=silent open=2") == 1
    assert _num_lost(replica) == 1
    assert replica.supervisor.num_open == replica.supervisor.num_open_choices == 1
    # rows that were under way are dropped, and the other client goes on
    await replica.step((7, 1, NONE), (9, 2, NONE))
    assert vanished.rows == []
    assert other.rows == [(9, 0, 2, NONE)]
    # the client may come again
    assert replica.submit(1, 7).refusal is None


async def test_a_client_that_leaves_with_nothing_open_is_forgotten_in_silence(
    replica: Replica, clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    replica.submit(1, 7)
    replica.commands()
    await replica.step((7, 5, LENGTH))
    await clock.advance(2 * LIMITS.lease_s)
    assert replica.commands() == []
    assert caplog.text == ""
    assert replica.supervisor.num_open_choices == 0
    replica.supervisor.renew(1, 0)


async def test_a_request_whose_client_does_not_read_ends_and_may_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = replace(LIMITS, window_bytes=1000, max_request_bytes=2000)
    replica = await Replica.started(limits=limits)
    replica.submit(1, 7, n=2)
    replica.submit(1, 9)
    replica.submit(2, 8)
    replica.commands()
    # what takes the messages here is no proof that the client has read them
    taken, reading = replica.read(1), replica.read(2)
    while not (commands := replica.commands()):
        await replica.step((7, 5, NONE), (8, 5, NONE))
        replica.supervisor.renew(1, 0)
        replica.supervisor.renew(2, reading.num_bytes)
    assert commands == [Withdrawal(int64([7]), int32([ALL_CHOICES]))]
    assert taken.num_bytes < 2000
    assert replica.supervisor.num_open == 2
    assert caplog.text.count("request_unread client=1 request_id=7") == 1
    # when it reads on, it learns that the request is to go on elsewhere
    replica.supervisor.renew(1, taken.num_bytes)
    await replica.step((9, 5, NONE))
    ends = [(row[0], row[1]) for row in taken.rows if row[3] is FinishReason.LOST]
    assert ends == [(7, 0), (7, 1)]
    assert not taken.has_ended
    assert not reading.has_ended
    await replica.close()


async def test_aborts_and_releases_go_to_the_scheduler(replica: Replica) -> None:
    replica.supervisor.abort([7, 8])
    replica.supervisor.abort((9,), choice=2)
    replica.supervisor.release_prefix(b"tenant", "a")
    assert replica.commands() == [
        Withdrawal(int64([7, 8]), int32([ALL_CHOICES] * 2)),
        Withdrawal(int64([9]), int32([2])),
        Withdrawal(int64(), int32(), ((b"tenant", "a"),)),
    ]


async def test_pinned_prefixes_are_those_that_the_scheduler_named_last(
    replica: Replica, clock: LoopClock
) -> None:
    pinned = tuple(
        PinnedPrefix(
            salt=salt,
            name="a",
            tokens=int32([1, 2, 3, 4]),
            num_blocks=1,
            is_warm=True,
            expires_s=clock.now_s + 9.0,
        )
        for salt in (b"one", b"two")
    )
    assert PINS.decode(replica.supervisor.pins()) == []
    await replica.step(pinned=pinned)
    # an output that says nothing of prefixes changes nothing
    await replica.step()
    await clock.advance(2.0)
    [info] = PREFIXES.decode(replica.supervisor.prefixes(b"one"))
    assert (info.name, info.num_tokens) == ("a", 4)
    assert info.ttl_s == pytest.approx(7.0)
    pins = PINS.decode(replica.supervisor.pins())
    assert [pin.salt for pin in pins] == [b"one", b"two"]
    assert [pin.ttl_s for pin in pins] == pytest.approx([7.0, 7.0])
    await replica.step(pinned=())
    assert PINS.decode(replica.supervisor.pins()) == []
