"""A small completions server with exact counts, which fails where a test asks for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class FakeServer:
    """How it answers.

    Attributes:
        chunk: tokens per chunk.
        pause_s: seconds between chunks.
        fail: input length to what happens to such a request: status, error, cut, short or hang.
        seen: bodies of the requests.
    """

    chunk: int = 1
    pause_s: float = 0.0
    fail: dict[int, str] = field(default_factory=dict)
    seen: list[dict[str, object]] = field(default_factory=list)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        failure = self.fail.get(len(body["prompt"]))
        if failure == "status":
            return web.json_response({"error": {"message": "full"}}, status=429)
        wanted = body["max_tokens"] - (failure == "short")
        if not body.get("stream"):
            return web.json_response({"usage": {"completion_tokens": wanted}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")
        for start in range(0, wanted, self.chunk):
            await asyncio.sleep(self.pause_s)
            number = min(self.chunk, wanted - start)
            await response.write(event(number, start + number))
            if failure == "error":
                await response.write(b'data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n')
                return response
            if failure == "cut":
                assert request.transport is not None
                request.transport.close()
                return response
            if failure == "hang":
                await asyncio.sleep(3600)
        await response.write(b'data: {"choices": [], "usage": null}\n\ndata: [DONE]\n\n')
        return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve on a free port; yields the base URL."""
        app = web.Application()
        app.serve.router.add_get("/v1/models", self.models)
        app.serve.router.add_post("/v1/completions", self.completions)
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()


def event(number: int, total: int) -> bytes:
    """Encode a chunk of `number` tokens after which `total` are out."""
    choice = {"index": 0, "text": "x" * number, "token_ids": [7] * number}
    chunk = {"choices": [choice], "usage": {"completion_tokens": total}}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
