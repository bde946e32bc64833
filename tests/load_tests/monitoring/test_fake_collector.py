import asyncio

import aiohttp
import pytest

from load_tests.monitoring.fake_collector import FakeCollector, Mood


async def post(session: aiohttp.ClientSession, url: str) -> int:
    async with session.post(url, data=b"spans") as response:
        return response.status


async def test_a_collector_answers_refuses_or_hangs_at_the_same_place() -> None:
    collector = FakeCollector()
    collector.choose_port()
    async with aiohttp.ClientSession(trust_env=False) as session:
        with pytest.raises(aiohttp.ClientError):
            await post(session, collector.url)
        await collector.be(Mood.ALIVE)
        assert await post(session, collector.url) == 200
        assert await post(session, collector.url) == 200
        await collector.be(Mood.REFUSING)
        with pytest.raises(aiohttp.ClientError):
            await post(session, collector.url)
        await collector.be(Mood.HANGING)
        hanging = asyncio.create_task(post(session, collector.url))
        await collector.has_silenced.wait()
        assert not hanging.done()
        # who hangs is let go by the next mood
        await collector.be(Mood.ALIVE)
        with pytest.raises(aiohttp.ClientError):
            await hanging
        assert collector.num_batches == 2
    await collector.close()
