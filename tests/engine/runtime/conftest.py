import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from engine.config import ResumeConfig
from engine.runtime.client.client import RemoteEngineClient
from tests.fakes.engine_handle import FakeEngineHandle
from tests.fakes.loop_clock import LoopClock
from tests.fakes.scripted_gang import Replica


@pytest.fixture
async def handle(monkeypatch: pytest.MonkeyPatch) -> FakeEngineHandle:
    """What it sends is handed on at once: no pause that a slow machine makes (`Delivery`)."""
    monkeypatch.setattr("engine.runtime.client.delivery._SHORT_S", math.inf)
    return FakeEngineHandle()


@pytest.fixture
async def client(handle: FakeEngineHandle) -> AsyncIterator[RemoteEngineClient]:
    before = asyncio.all_tasks()
    client = RemoteEngineClient(handle, resume=ResumeConfig())
    yield client
    await client.close()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> LoopClock:
    return LoopClock(monkeypatch)


@pytest.fixture
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a gang that is lost again and again replaced without the growing pauses."""
    monkeypatch.setattr("engine.runtime.replica.watch.gang_keeper.BACK_OFF_S", 0.01)


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = await Replica.started()
    yield replica
    await replica.close()
