import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.runtime.client.client import RemoteEngineClient
from tests.fakes.engine_handle import FakeEngineHandle


@pytest.fixture
async def handle() -> FakeEngineHandle:
    return FakeEngineHandle()


@pytest.fixture
async def client(handle: FakeEngineHandle) -> AsyncIterator[RemoteEngineClient]:
    before = asyncio.all_tasks()
    client = RemoteEngineClient(handle, renew_period_s=0.01)
    yield client
    await client.close()
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}
