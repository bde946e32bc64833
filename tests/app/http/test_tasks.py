"""Tasks end with the request that started them."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import pytest

from app.http.tasks import until_disconnect, with_pulse


async def let_run(task: "asyncio.Future[Any]") -> None:
    """Let a task go as far as it can."""
    await asyncio.wait({task}, timeout=0)


class Connection:
    """Receives nothing until the client leaves."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def test_work_is_cancelled_when_the_client_leaves_and_may_clean_up() -> None:
    connection, steps = Connection(), list[str]()

    async def work() -> None:
        try:
            connection.leaves.set()
            await asyncio.Event().wait()
        finally:
            await let_run(asyncio.get_running_loop().create_future())
            steps.append("cleaned up")

    await until_disconnect(connection.receive, work())
    assert steps == ["cleaned up"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_that_ends_stops_watching_for_the_client() -> None:
    async def work(*, fails: bool) -> None:
        if fails:
            raise ValueError("x")

    await until_disconnect(Connection().receive, work(fails=False))
    with pytest.raises(ValueError, match="x"):
        await until_disconnect(Connection().receive, work(fails=True))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_is_cancelled_with_its_request() -> None:
    started, was_cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    task = asyncio.ensure_future(until_disconnect(Connection().receive, work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert was_cancelled.is_set()


async def test_a_pulse_comes_while_there_is_no_item() -> None:
    gate = asyncio.Event()

    async def items() -> AsyncGenerator[int, None]:
        yield 1
        await gate.wait()
        yield 2

    seen: list[int | None] = []
    async with aclosing(with_pulse(items(), 0.001)) as source:
        async for item in source:
            seen.append(item)
            if item is None:
                gate.set()
    assert [item for item in seen if item is not None] == [1, 2]
    assert None in seen


async def test_a_stream_with_a_pulse_that_is_left_closes_its_source() -> None:
    closed = asyncio.Event()

    async def items() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with aclosing(with_pulse(items(), 1e6)) as source:
        assert await anext(source) == 1
    assert closed.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_comes_through_a_pulse() -> None:
    async def items() -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("x")

    source = with_pulse(items(), 1e6)
    assert await anext(source) == 1
    with pytest.raises(ValueError, match="x"):
        await anext(source)


async def test_an_error_is_let_go_of_with_what_its_frames_hold() -> None:
    class Large:
        """Stands for the body of a request."""

    held: list[weakref.ref[Large]] = []

    async def work() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError(large)

    gc.collect()
    gc.disable()
    try:
        with suppress(ValueError):
            await until_disconnect(Connection().receive, work())
        assert held[0]() is None
    finally:
        gc.enable()
