"""How late an event loop does what is due."""

import asyncio
from collections.abc import Callable

PERIOD_S = 0.5


async def watch_loop(observe: Callable[[float], None], period_s: float = PERIOD_S) -> None:
    """Observe seconds by which a timer is late, for as long as the task is not cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + period_s
        await asyncio.sleep(period_s)
        observe(max(0.0, loop.time() - due_s))
