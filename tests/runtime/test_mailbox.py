import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.errors import EngineError
from engine.runtime.columns import failure, idle_stats
from engine.runtime.mailbox import Mailbox
from engine.runtime.messages import OUTPUTS, decode_batch
from engine.types import Capacity

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))
LONG_S, SHORT_S = 60.0, 0.05


class Box:
    """A mailbox and the event of its lapse."""

    def __init__(self, *, lease_s: float = LONG_S, idle_s: float = SHORT_S) -> None:
        self.lapsed = asyncio.Event()
        self.mailbox = Mailbox(lease_s=lease_s, idle_s=idle_s, on_lapsed=self.lapsed.set)

    def put(self, *request_ids: int) -> None:
        self.mailbox.put(OUTPUTS.encode(failure(request_ids, STATS)))


async def ids_of(stream: AsyncIterator[bytes]) -> list[list[int]]:
    """Ids of each output of the next batch."""
    return [output.request_ids.tolist() for output in decode_batch(await anext(stream))]


async def test_one_yield_takes_everything_queued() -> None:
    box = Box()
    box.put(1)
    box.put(2, 3)
    stream = box.mailbox.stream()
    assert await ids_of(stream) == [[1], [2, 3]]
    box.put(4)
    assert await ids_of(stream) == [[4]]
    box.mailbox.close()


async def test_the_stream_ends_itself_when_nothing_is_open() -> None:
    box = Box()
    assert [batch async for batch in box.mailbox.stream()] == []
    box.mailbox.close()


async def test_the_stream_stays_while_a_request_is_open() -> None:
    box = Box(idle_s=0.0)
    box.mailbox.opened(1)
    waiting = asyncio.ensure_future(ids_of(box.mailbox.stream()))
    done, _ = await asyncio.wait([waiting], timeout=SHORT_S)
    assert not done
    box.put(1)
    assert await waiting == [[1]]
    box.mailbox.close()


async def test_a_second_stream_takes_over() -> None:
    box = Box(idle_s=LONG_S)
    first, second = box.mailbox.stream(), box.mailbox.stream()
    waiting = asyncio.ensure_future(ids_of(first))
    await asyncio.sleep(0)
    other = asyncio.ensure_future(ids_of(second))
    with pytest.raises(StopAsyncIteration):
        await waiting
    box.put(7)
    assert await other == [[7]]
    box.mailbox.close()


async def test_a_client_that_never_attaches_lapses() -> None:
    box = Box(lease_s=SHORT_S)
    box.mailbox.opened(1)
    box.mailbox.renew()
    await asyncio.wait_for(box.lapsed.wait(), 10)
    box.mailbox.close()


async def test_an_attached_client_lapses_when_it_is_silent() -> None:
    box = Box(lease_s=SHORT_S)
    box.mailbox.opened(1)
    waiting = asyncio.ensure_future(ids_of(box.mailbox.stream()))
    await asyncio.wait_for(box.lapsed.wait(), 10)
    box.mailbox.close()
    with pytest.raises(EngineError, match="given up"):
        await waiting


async def test_renewal_keeps_the_lease_of_an_attached_client() -> None:
    box = Box(lease_s=0.5)
    box.mailbox.opened(1)
    waiting = asyncio.ensure_future(ids_of(box.mailbox.stream()))
    for _ in range(10):
        await asyncio.sleep(0.1)
        box.mailbox.renew()
    assert not box.lapsed.is_set()
    box.put(1)
    assert await waiting == [[1]]
    box.mailbox.close()
