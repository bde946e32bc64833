import pytest

from app.telemetry.traces.trace_choice import TraceChoice
from tests.app.telemetry.records import ended


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1.0]
    monkeypatch.setattr("app.telemetry.traces.trace_choice.time.monotonic", lambda: now[0])
    return now


def test_errors_and_what_was_asked_for_are_always_wanted(now_s: list[float]) -> None:
    choice = TraceChoice(0.0, 1000.0)
    assert choice.wants(ended(code=503), is_asked_for=False)
    assert choice.wants(ended(code=429), is_asked_for=False)
    assert choice.wants(ended(), is_asked_for=True)
    assert not choice.wants(ended(), is_asked_for=False)
    assert not choice.wants(ended(code=400), is_asked_for=False)


def test_what_takes_ten_times_the_median_is_wanted(now_s: list[float]) -> None:
    choice = TraceChoice(0.0, 1000.0)
    assert not choice.wants(ended(50.0), is_asked_for=False)
    for _ in range(40):
        assert not choice.wants(ended(1.0), is_asked_for=False)
    assert choice.wants(ended(10.5), is_asked_for=False)
    assert not choice.wants(ended(9.5), is_asked_for=False)


def test_a_share_of_the_ordinary_ones_is_wanted(
    now_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter([0.24, 0.26])
    monkeypatch.setattr("app.telemetry.traces.trace_choice.random.random", lambda: next(drawn))
    choice = TraceChoice(0.25, 1000.0)
    assert choice.wants(ended(), is_asked_for=False)
    assert not choice.wants(ended(), is_asked_for=False)


def test_there_are_never_more_in_a_second_than_allowed(now_s: list[float]) -> None:
    choice = TraceChoice(1.0, 3.0)
    assert sum(choice.wants(ended(), is_asked_for=True) for _ in range(10)) == 3
    now_s[0] += 1.0
    assert sum(choice.wants(ended(), is_asked_for=True) for _ in range(10)) == 3
    now_s[0] += 100.0
    assert sum(choice.wants(ended(), is_asked_for=True) for _ in range(10)) == 3
