"""Running the work of a request, and ending it when the client goes away."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive

from app.generation.cancellation import finish

ResultT = TypeVar("ResultT")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it when the client goes away; return only once it has ended."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
        await finish(asyncio.gather(task, watch, return_exceptions=True))
    try:
        if not task.cancelled():
            task.result()
    finally:
        # else error, frame and task keep each other, and with them the whole request
        del task


async def with_pulse(
    items: AsyncGenerator[ResultT, None], period_s: float
) -> AsyncGenerator[ResultT | None, None]:
    """Yield items as they come, and None after every `period_s` seconds without one."""
    async with aclosing(items):
        coming = asyncio.ensure_future(anext(items, None))
        try:
            while True:
                await asyncio.wait({coming}, timeout=period_s)
                if not coming.done():
                    yield None
                elif (item := coming.result()) is None:
                    return
                else:
                    yield item
                    coming = asyncio.ensure_future(anext(items, None))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
