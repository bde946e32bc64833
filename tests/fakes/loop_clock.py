"""The clock of the running loop, moved by hand: timers fire without waiting."""

import asyncio

import pytest


class LoopClock:
    """Stands still between two calls of `advance`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now_s)

    async def advance(self, seconds: float) -> None:
        """Run what is due, move the clock, and run what is due then."""
        await settle()
        self.now_s += seconds
        await settle()


async def settle() -> None:
    """Let everything run that has no reason to wait."""
    for _ in range(20):
        await asyncio.sleep(0)
