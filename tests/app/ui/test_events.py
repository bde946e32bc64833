from app.ui.audience import OPERATOR, Audience
from app.ui.events import MAX_ACCOUNTS, MAX_EVENTS, EventLog
from engine.types import EventKind
from tests.app.ui.views import ALICE, BOB, snapshot_of_two_tenants, view_of

QUEUED, ENDED = EventKind.QUEUED, EventKind.ENDED


def test_each_audience_gets_the_events_of_its_own_requests() -> None:
    log = EventLog()
    log.take(view_of(None, [(1, QUEUED, 5, ALICE), (2, QUEUED, 6, BOB), (1, ENDED, 9, None)]), None)
    assert log.since(0, Audience(ALICE)) == [("a", "1", QUEUED, 5), ("a", "1", ENDED, 9)]
    assert log.since(0, Audience(BOB)) == [("a", "2", QUEUED, 6)]
    assert len(log.since(0, OPERATOR)) == 3


def test_events_of_a_request_that_nobody_is_known_to_own_are_for_operators() -> None:
    log = EventLog()
    log.take(view_of(None, [(1, QUEUED, 5, None)]), None)
    assert log.since(0, Audience(b"")) == []
    assert len(log.since(0, OPERATOR)) == 1


def test_a_snapshot_says_whose_a_request_is() -> None:
    log = EventLog()
    log.take(view_of(None, [(11, QUEUED, 5, None)]), snapshot_of_two_tenants())
    assert log.since(0, Audience(ALICE)) == [("a", "b", QUEUED, 5)]
    assert log.since(0, Audience(BOB)) == []


def test_each_event_is_given_once_to_who_asks_from_the_next() -> None:
    log = EventLog()
    log.take(view_of(None, [(1, QUEUED, 5, ALICE)]), None)
    number = log.next_number
    log.take(view_of(None, [(1, ENDED, 7, ALICE)]), None)
    assert log.since(number, OPERATOR) == [("a", "1", ENDED, 7)]
    assert log.since(log.next_number, OPERATOR) == []


def test_what_is_kept_is_bounded() -> None:
    log = EventLog()
    events = [(number, QUEUED, number, ALICE) for number in range(MAX_EVENTS + 10)]
    log.take(view_of(None, events), None)
    assert len(log.since(0, OPERATOR)) == MAX_EVENTS
    assert len(log._accounts) == MAX_ACCOUNTS
