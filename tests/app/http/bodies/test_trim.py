"""The system gets its pages back once a burst of large requests is over."""

import ctypes
import threading
from types import SimpleNamespace

import pytest

from app.http.bodies.trim import MAX_WAIT_S, WAIT_S, WORTH_BYTES, Trimmer, trim_memory
from tests.fakes.loop_clock import LoopClock


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


async def test_memory_is_trimmed_once_after_a_burst(clock: LoopClock) -> None:
    trimmed: list[threading.Thread] = []
    done = threading.Event()

    def trim() -> None:
        trimmed.append(threading.current_thread())
        done.set()

    trimmer = Trimmer(trim)
    for _ in range(4):
        trimmer.passed(WORTH_BYTES)
        await clock.advance(0.9 * WAIT_S)
    assert trimmed == []
    await clock.advance(0.2 * WAIT_S)
    assert done.wait(10)
    assert len(trimmed) == 1
    assert trimmed[0] is not threading.current_thread()
    await clock.advance(5 * WAIT_S)
    assert len(trimmed) == 1


async def test_memory_is_trimmed_in_a_burst_that_does_not_end(clock: LoopClock) -> None:
    done, begin_s = threading.Event(), clock.now_s
    trimmer = Trimmer(done.set)
    while clock.now_s <= begin_s + MAX_WAIT_S:
        trimmer.passed(WORTH_BYTES)
        await clock.advance(0.9 * WAIT_S)
    assert done.wait(10)


async def test_small_requests_are_not_worth_it(clock: LoopClock) -> None:
    done = threading.Event()
    trimmer = Trimmer(done.set)
    for _ in range(100):
        trimmer.passed(WORTH_BYTES - 1)
    await clock.advance(2 * MAX_WAIT_S)
    assert not done.is_set()


@pytest.mark.parametrize("is_glibc", [True, False])
def test_any_c_library_will_do(is_glibc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    library = SimpleNamespace(malloc_trim=kept.append) if is_glibc else SimpleNamespace()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    trim_memory()
    assert kept == ([0] if is_glibc else [])
