import asyncio

import aiohttp
from aiohttp import web

from load_tests.bench.neighbours.watch import GoodStreams, Prober, Window
from load_tests.free_port import free_port


class Server:
    """Streams a text, and answers /live, as often as it is asked."""

    def __init__(self) -> None:
        self.texts = ["the text"]
        self.num_streams = 0
        self.is_cut = False
        self.error = ""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for text in self.texts:
            await response.write(b'data: {"choices": [{"text": "%s"}]}\n\n' % text.encode())
        if self.error:
            await response.write(b'data: {"error": {"message": "%s"}}\n\n' % self.error.encode())
        elif not self.is_cut:
            await response.write(b"data: [DONE]\n\n")
        self.num_streams += 1
        return response

    async def live(self, _: web.Request) -> web.Response:
        return web.json_response({})


async def watched(server: Server, *changes: dict[str, object]) -> list[Window]:
    """What is seen of the server after each change."""
    app = web.Application()
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_get("/live", server.live)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    url, windows = f"http://127.0.0.1:{port}", []
    async with aiohttp.ClientSession(url) as session:
        streams, prober = GoodStreams(session, 2), Prober(url)
        await streams.first()
        running = asyncio.ensure_future(streams.run())
        for change in changes:
            vars(server).update(change)
            streams.take()
            await prober.take()
            begun = server.num_streams
            while server.num_streams < begun + 6:
                await asyncio.wait({running}, timeout=0.02)
            windows.append(streams.take())
            windows[-1].live_s = await prober.take()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(prober.end)
    await runner.cleanup()
    return windows


async def test_streams_that_are_cut_off_or_differ_are_faults() -> None:
    good, other, cut, failed = await watched(
        Server(),
        {},
        {"texts": ["another"]},
        {"texts": ["the text"], "is_cut": True},
        {"is_cut": False, "error": "engine_failed"},
    )
    assert (good.faults, good.num_streams >= 4) == ([], True)
    assert good.live_p99_s < float("inf")
    assert any("another text" in fault for fault in other.faults)
    assert any("cut off" in fault for fault in cut.faults)
    assert any("engine_failed" in fault for fault in failed.faults)


def test_the_99th_percentile_leaves_out_one_of_two_hundred() -> None:
    assert Window(live_s=[0.0] * 199 + [1.0]).live_p99_s == 0.0
    assert Window(live_s=[0.0] * 9 + [1.0] * 9).live_p99_s == 1.0
    assert Window().live_p99_s == float("inf")
