"""Open HTTP requests are counted until their answer is sent, however they end."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.serve.counted_app import CountedApp
from tests.fakes.loop_clock import LoopClock, settle


class Held:
    """An application whose answers end when the test says so."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may_end.wait()
        if self.error is not None:
            raise self.error


async def nothing() -> Message:
    return {}


async def ignore(message: Message) -> None:
    pass


def request(app: CountedApp, kind: str = "http") -> "asyncio.Task[None]":
    async def serve() -> None:
        await app({"type": kind}, nothing, ignore)

    return asyncio.create_task(serve())


async def test_the_wait_is_over_with_the_last_request() -> None:
    inner = Held()
    app = CountedApp(inner)
    assert await app.wait_until_idle(0.0) == 0
    tasks = [request(app), request(app), request(app, "lifespan")]
    await settle()
    assert app.num_open == 2
    waiting = asyncio.create_task(app.wait_until_idle(60.0))
    await settle()
    assert not waiting.done()
    inner.may_end.set()
    assert await waiting == 0
    await asyncio.gather(*tasks)


async def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    app = CountedApp(Held())
    task = request(app)
    waiting = asyncio.create_task(app.wait_until_idle(30.0))
    await clock.advance(29.0)
    assert not waiting.done()
    await clock.advance(1.0)
    assert await waiting == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert app.num_open == 0


async def test_a_request_that_fails_is_over() -> None:
    inner = Held()
    inner.error = ValueError("broken")
    inner.may_end.set()
    app = CountedApp(inner)
    with pytest.raises(ValueError, match="broken"):
        await request(app)
    assert await app.wait_until_idle(0.0) == 0
