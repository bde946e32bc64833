"""Full searches for garbage come by the clock, however many requests come and go."""

import gc
from collections import deque
from collections.abc import Iterator

import pytest

from app.serve.garbage import _FEW, MAX_POSTPONED, PERIOD_S, search_seldom
from tests.fakes.loop_clock import LoopClock


@pytest.fixture
def full_searches() -> Iterator[list[str]]:
    """Grows with each."""
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(phase)

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*thresholds)


async def test_open_requests_are_searched_through_once_a_minute(
    full_searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    clock = LoopClock(monkeypatch)
    search_seldom(lambda: 0)
    full_searches.clear()
    # a few hundred are open at a time
    is_open: deque[list[list[int]]] = deque(maxlen=300)
    for _ in range(20_000):
        is_open.append([[each] for each in range(20)])
    assert not full_searches
    await clock.advance(PERIOD_S + 0.1)
    await clock.advance(PERIOD_S + 0.1)
    assert len(full_searches) == 2


async def test_while_many_are_open_a_search_waits_but_not_for_ever(
    full_searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    clock = LoopClock(monkeypatch)
    num_open = _FEW + 1
    search_seldom(lambda: num_open)
    full_searches.clear()
    for _ in range(MAX_POSTPONED):
        await clock.advance(PERIOD_S + 0.1)
    assert not full_searches
    await clock.advance(PERIOD_S + 0.1)
    assert len(full_searches) == 1
    await clock.advance(PERIOD_S + 0.1)
    assert len(full_searches) == 1
    num_open = _FEW
    await clock.advance(PERIOD_S + 0.1)
    assert len(full_searches) == 2
