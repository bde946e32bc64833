import asyncio

from engine.runtime.metrics.loop_lag import watch_loop
from tests.fakes.loop_clock import LoopClock


async def test_a_loop_that_is_held_up_is_late(clock: LoopClock) -> None:
    seen: list[float] = []
    task = asyncio.ensure_future(watch_loop(seen.append, period_s=1.0))
    await clock.advance(0.0)
    await clock.advance(1.0)
    await clock.advance(3.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen[0] == 0.0
    assert sum(seen) > 0
