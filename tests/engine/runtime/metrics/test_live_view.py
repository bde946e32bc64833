import asyncio
from collections.abc import Iterator

import pytest

from engine.runtime.messages import COMMANDS, REPLICA_VIEWS, EngineQuestion, ReplicaView
from engine.runtime.metrics.live_view import ANSWER_S, LEASE_S, MAX_EVENTS, MIN_PERIOD_S, LiveView
from engine.runtime.metrics.metric_store import Series, decode_series
from engine.types import (
    EventKind,
    Request,
    RequestEvents,
    SamplingParams,
    StepOutput,
    Terms,
    int8,
    int32,
    int64,
)
from tests.fakes.loop_clock import LoopClock, settle

QUEUED, ADMITTED, ENDED = EventKind.QUEUED, EventKind.ADMITTED, EventKind.ENDED


class Watched:
    """A live view, and a scheduler that answers when the test says so."""

    def __init__(self) -> None:
        self.questions: list[object] = []
        self.open: list[tuple[int, EventKind, int]] = []
        self.live = LiveView("a", send=self._send, open_events=self._open_events)

    async def look(self, first_event: int = 0, *, is_ready: bool = True) -> ReplicaView:
        data = await self.live.view(first_event, self._series, is_ready=is_ready)
        return REPLICA_VIEWS.decode(data)

    async def answered(self, first_event: int = 0) -> ReplicaView:
        """Look, and have the scheduler answer."""
        looking = asyncio.create_task(self.look(first_event))
        await settle()
        if not looking.done():
            self.live.take(b"snapshot %d" % len(self.questions))
        return await looking

    def happen(self, *events: tuple[int, EventKind, int]) -> None:
        columns = RequestEvents(
            requests=int64([event[0] for event in events]),
            kinds=int8([event[1] for event in events]),
            times_us=int64([event[2] for event in events]),
        )
        self.live.observe(StepOutput(step=0, events=columns))

    def accept(self, request_id: int, account: bytes) -> None:
        sampling, terms = SamplingParams(max_tokens=1), Terms(account=account)
        self.live.accepted(
            Request(request_id=request_id, prompt=int32([1]), sampling=sampling, terms=terms)
        )

    def _send(self, command: bytes) -> None:
        self.questions.append(COMMANDS.decode(command))

    def _open_events(self) -> Iterator[tuple[int, EventKind, int]]:
        return iter(self.open)

    def _series(self) -> list[Series]:
        return [Series(name="steps_total", labels=("decode",), value=3.0)]


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


def events_of(view: ReplicaView) -> list[tuple[int, int]]:
    return list(zip(view.events.requests, view.events.kinds, strict=True))


async def test_while_nobody_looks_nothing_is_asked_or_kept(clock: LoopClock) -> None:
    watched = Watched()
    watched.accept(1, b"x")
    watched.happen((1, QUEUED, 5))
    await clock.advance(1)
    assert watched.questions == []
    assert not watched.live._events
    assert not watched.live._accounts


async def test_a_view_has_the_schedulers_answer_and_the_metrics(clock: LoopClock) -> None:
    watched = Watched()
    view = await watched.answered()
    assert watched.questions == [EngineQuestion.SNAPSHOT]
    assert view.snapshot == b"snapshot 1"
    assert view.replica == "a"
    assert decode_series(view.series)[0].value == 3.0


async def test_all_who_look_at_once_get_one_answer(clock: LoopClock) -> None:
    watched = Watched()
    looking = [asyncio.create_task(watched.look()) for _ in range(8)]
    await settle()
    watched.live.take(b"the one")
    views = await asyncio.gather(*looking)
    assert len(watched.questions) == 1
    assert {view.snapshot for view in views} == {b"the one"}


async def test_snapshots_are_no_closer_than_the_period(clock: LoopClock) -> None:
    watched = Watched()
    await watched.answered()
    await clock.advance(MIN_PERIOD_S / 2)
    assert (await watched.answered()).snapshot == b"snapshot 1"
    await clock.advance(MIN_PERIOD_S)
    assert (await watched.answered()).snapshot == b"snapshot 2"


async def test_a_long_step_does_not_hold_a_view_up_for_long(clock: LoopClock) -> None:
    watched = Watched()
    await watched.answered()
    await clock.advance(MIN_PERIOD_S)
    looking = asyncio.create_task(watched.look())
    await clock.advance(ANSWER_S + 0.1)
    assert (await looking).snapshot == b"snapshot 1"
    # the question is still open: none is added to it
    again = asyncio.create_task(watched.look())
    await settle()
    assert len(watched.questions) == 2
    watched.live.take(b"late")
    assert (await again).snapshot == b"late"


async def test_each_event_comes_once_with_its_account(clock: LoopClock) -> None:
    watched = Watched()
    await watched.answered()
    watched.accept(1, b"alice")
    watched.happen((1, QUEUED, 5), (2, QUEUED, 6))
    view = await watched.answered()
    assert events_of(view) == [(1, QUEUED), (2, QUEUED)]
    assert view.event_accounts == (b"alice", None)
    watched.happen((1, ENDED, 9))
    view = await watched.answered(view.next_event)
    assert events_of(view) == [(1, ENDED)]
    assert view.event_accounts == (b"alice",)
    assert not watched.live._accounts
    assert events_of(await watched.answered(view.next_event)) == []


async def test_whoever_begins_to_look_gets_what_is_open(clock: LoopClock) -> None:
    watched = Watched()
    watched.open = [(4, QUEUED, 1), (4, ADMITTED, 2)]
    assert events_of(await watched.answered()) == [(4, QUEUED), (4, ADMITTED)]


async def test_nobody_looks_any_more_when_the_lease_is_over(clock: LoopClock) -> None:
    watched = Watched()
    await watched.answered()
    await clock.advance(LEASE_S + 1)
    watched.happen((1, QUEUED, 5))
    assert not watched.live._events


async def test_a_number_of_another_life_gets_all_that_is_kept(clock: LoopClock) -> None:
    watched = Watched()
    await watched.answered()
    watched.happen((1, QUEUED, 5))
    assert events_of(await watched.answered(10_000)) == [(1, QUEUED)]


async def test_what_is_kept_is_bounded(clock: LoopClock) -> None:
    watched = Watched()
    await watched.answered()
    watched.happen(*((number, QUEUED, number) for number in range(MAX_EVENTS + 5)))
    assert len((await watched.answered()).events.requests) == MAX_EVENTS


async def test_a_replica_without_a_gang_is_not_asked(clock: LoopClock) -> None:
    watched = Watched()
    view = await watched.look(is_ready=False)
    assert not view.is_ready
    assert view.snapshot == b""
    assert watched.questions == []


async def test_a_lost_scheduler_leaves_nobody_waiting(clock: LoopClock) -> None:
    watched = Watched()
    looking = asyncio.create_task(watched.look())
    await settle()
    watched.live.lost_gang()
    assert (await looking).snapshot == b""
