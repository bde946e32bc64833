import asyncio
import gc
import weakref

import pytest

from app.generation.cancellation import finish


async def test_a_task_is_finished_before_a_cancellation_goes_on() -> None:
    gate = asyncio.Event()
    inner = asyncio.ensure_future(gate.wait())
    outer = asyncio.ensure_future(finish(inner))
    for _ in range(3):
        await asyncio.wait({outer}, timeout=0)
        outer.cancel()
    await asyncio.wait({outer}, timeout=0)
    assert not outer.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert inner.result() is True


async def test_a_finished_task_hands_on_its_result_or_error() -> None:
    async def work(*, fails: bool) -> int:
        if fails:
            raise ValueError("x")
        return 7

    assert await finish(asyncio.ensure_future(work(fails=False))) == 7
    with pytest.raises(ValueError, match="x"):
        await finish(asyncio.ensure_future(work(fails=True)))


class Prompt:
    """What a request keeps."""


async def test_a_cancelled_caller_leaves_nothing_to_the_garbage_collector() -> None:
    inner = asyncio.get_running_loop().create_future()
    kept: list[weakref.ref[Prompt]] = []

    async def request() -> None:
        prompt = Prompt()
        kept.append(weakref.ref(prompt))
        await finish(inner)

    gc.disable()
    try:
        outer = asyncio.ensure_future(request())
        await asyncio.wait({outer}, timeout=0)
        outer.cancel()
        await asyncio.wait({outer}, timeout=0)
        inner.set_result(None)
        await asyncio.wait({outer})
        assert outer.cancelled()
        del outer
        assert kept[0]() is None
    finally:
        gc.enable()
