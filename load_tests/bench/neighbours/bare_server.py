"""What the same burst does to a server that only reads it: the least that any server could show."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from aiohttp import web


@contextmanager
def bare_server() -> Iterator[str]:
    """Yield the URL of a server in a process of its own.

    It reads bodies of any path to their end and refuses them by 400; /live is answered.
    """
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{pipe.recv()}"
    finally:
        pipe.close()
        process.join()


def _serve(pipe: Connection) -> None:
    asyncio.run(_serve_until_closed(pipe))


async def _serve_until_closed(pipe: Connection) -> None:
    app = web.Application(client_max_size=1 << 40)
    app.router.add_get("/live", _live)
    app.router.add_post("/{path:.*}", _read)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    pipe.send(runner.addresses[0][1])
    with suppress(EOFError):
        await asyncio.to_thread(pipe.recv)
    await runner.cleanup()


async def _live(_: web.Request) -> web.Response:
    return web.json_response({"status": "live"})


async def _read(request: web.Request) -> web.Response:
    async for _ in request.content.iter_any():
        pass
    return web.json_response({"status": "read"}, status=400)
