"""One timer for many waits."""

import asyncio
from typing import Any

import pytest

from app.generation.watchdog import Watchdog
from tests.fakes.loop_clock import LoopClock, settle


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


async def item() -> int:
    return 1


async def test_what_comes_in_time_is_returned_with_one_timer_for_all(
    clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, timers = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def note(at_s: float, callback: Any) -> asyncio.TimerHandle:
        timers.append(at_s)
        return call_at(at_s, callback)

    monkeypatch.setattr(loop, "call_at", note)
    watchdog = Watchdog()
    start_s = clock.now_s
    for seconds in range(5):
        assert await watchdog.wait(item(), start_s + 10 + seconds) == 1
    assert timers == [start_s + 10]
    watchdog.close()


async def test_what_is_late_is_cancelled(clock: LoopClock) -> None:
    watchdog, has_ended = Watchdog(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    # the timer of an earlier wait is due first, and moves
    await watchdog.wait(item(), clock.now_s + 1)
    waiting = asyncio.create_task(watchdog.wait(work(), clock.now_s + 5))
    await clock.advance(4.9)
    assert not waiting.done()
    await clock.advance(0.2)
    with pytest.raises(TimeoutError):
        await waiting
    assert has_ended.is_set()
    assert await watchdog.wait(item(), clock.now_s + 1) == 1
    watchdog.close()


async def test_an_earlier_limit_moves_the_timer(clock: LoopClock) -> None:
    watchdog = Watchdog()
    await watchdog.wait(item(), clock.now_s + 100)
    waiting = asyncio.create_task(watchdog.wait(asyncio.Event().wait(), clock.now_s + 5))
    await clock.advance(5.1)
    with pytest.raises(TimeoutError):
        await waiting


async def test_what_somebody_else_cancels_is_cancelled(clock: LoopClock) -> None:
    watchdog = Watchdog()
    waiting = asyncio.create_task(watchdog.wait(asyncio.Event().wait(), clock.now_s + 5))
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    both = asyncio.create_task(watchdog.wait(asyncio.Event().wait(), clock.now_s + 5))
    await settle()
    clock.now_s += 6
    # both in one round of the loop
    watchdog._check()
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    watchdog.close()


async def test_what_is_waited_for_may_be_given_more_time_but_no_less(clock: LoopClock) -> None:
    watchdog = Watchdog()
    waiting = asyncio.create_task(watchdog.wait(asyncio.Event().wait(), clock.now_s + 2))
    await clock.advance(1)
    watchdog.extend(clock.now_s + 3)
    watchdog.extend(clock.now_s)
    await clock.advance(2.9)
    assert not waiting.done()
    await clock.advance(0.2)
    with pytest.raises(TimeoutError):
        await waiting
