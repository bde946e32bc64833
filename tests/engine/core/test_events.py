from engine.core.events import Events
from engine.types import EventKind


def test_events_get_the_time_at_which_their_call_ends() -> None:
    events = Events(epoch_s=1_000.0)
    events.note(7, EventKind.QUEUED)
    events.note(7, EventKind.ADMITTED)
    events.stamp(2.5)
    events.note(7, EventKind.ENDED)
    events.stamp(3.0)
    events.stamp(4.0)
    taken = events.take()
    assert taken is not None
    assert list(taken.requests) == [7, 7, 7]
    assert list(taken.kinds) == [EventKind.QUEUED, EventKind.ADMITTED, EventKind.ENDED]
    assert list(taken.times_us) == [1_002_500_000, 1_002_500_000, 1_003_000_000]


def test_what_is_taken_does_not_change_and_comes_once() -> None:
    events = Events()
    assert events.take() is None
    events.note(1, EventKind.QUEUED)
    events.stamp(0.0)
    first = events.take()
    events.note(2, EventKind.QUEUED)
    events.stamp(1.0)
    second = events.take()
    assert first is not None
    assert second is not None
    assert (list(first.requests), list(second.requests)) == ([1], [2])
    assert events.take() is None
