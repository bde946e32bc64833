import asyncio
import io

import aiohttp

from load_tests.bench.neighbours.bare_server import bare_server


async def test_bodies_are_read_and_refused_and_live_answers() -> None:
    with bare_server() as url:
        async with aiohttp.ClientSession(url) as session:
            async with session.get("/live") as response:
                assert response.status == 200
            posts = (
                session.post("/v1/anything", data=io.BytesIO(bytes(4 << 20))) for _ in range(3)
            )
            answers = await asyncio.gather(*posts)
            assert [answer.status for answer in answers] == [400] * 3
