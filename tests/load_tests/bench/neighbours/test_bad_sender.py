import asyncio

from aiohttp import web

from load_tests.bench.neighbours.bad_sender import BadSender, open_bad_session, send_bad
from load_tests.bench.neighbours.fillings import LargeRequest
from load_tests.free_port import free_port

ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}
PATHS = ("/right", "/bare", "/served")
REQUESTS = [LargeRequest(name=path, path=path, body=b"{") for path in PATHS]


async def _answer(request: web.Request) -> web.Response:
    await request.read()
    match request.path:
        case "/right":
            return web.json_response(ERROR, status=400)
        case "/bare":
            return web.Response(text="bad", status=400)
    return web.json_response({}, status=200)


async def test_only_an_enveloped_refusal_is_right() -> None:
    app = web.Application()
    app.router.add_post("/{path}", _answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    url = f"http://127.0.0.1:{port}"
    async with open_bad_session(url) as session:
        seen = [await send_bad(session, REQUESTS, number) for number in range(3)]
    assert [(each.status, each.is_right) for each in seen] == [
        (400, True), (400, False), (200, False),
    ]  # fmt: skip
    sender = BadSender(url, REQUESTS, rate_per_s=1000.0)
    for _ in range(2):
        sender.start()
        await asyncio.sleep(0)
        seen = await sender.stop()
        assert [each.number for each in seen] == [number % 3 for number in range(len(seen))]
        assert all(each.is_right == (each.number == 0) for each in seen)
    await asyncio.to_thread(sender.end)
    await runner.cleanup()


async def test_a_server_that_is_not_there_answers_nothing() -> None:
    async with open_bad_session(f"http://127.0.0.1:{free_port()}") as session:
        refused = await send_bad(session, REQUESTS, 0)
    assert (refused.status, refused.is_right) == (0, False)
