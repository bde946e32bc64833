import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.errors import EngineError
from engine.runtime.messages import OUTPUTS, decode_batch
from engine.runtime.outputs import failure, idle_stats
from engine.runtime.replica.client_session import SILENT, SLOW, Mailbox
from engine.types import Capacity

STATS = idle_stats(Capacity(num_blocks=2, block_size=4, num_rows=1))
LONG_S, SHORT_S = 60.0, 0.05


class Box:
    """A mailbox and why its client was given up."""

    def __init__(
        self,
        *,
        lease_s: float = LONG_S,
        idle_s: float = SHORT_S,
        max_bytes: int = 1 << 20,
        coalesce_s: float = 0.0,
    ) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.mailbox = Mailbox(
            lease_s=lease_s,
            idle_s=idle_s,
            max_undelivered_bytes=max_bytes,
            coalesce_s=coalesce_s,
            on_lost=self.lost.set_result,
        )

    def put(self, *request_ids: int) -> None:
        self.mailbox.put(message(*request_ids), request_ids)


def message(*request_ids: int) -> bytes:
    return OUTPUTS.encode(failure([(request_id, 0) for request_id in request_ids], STATS))


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
    box.mailbox.close("given up")


async def test_the_stream_ends_itself_when_nothing_is_open() -> None:
    box = Box()
    assert [batch async for batch in box.mailbox.stream()] == []
    box.mailbox.close("given up")


async def test_the_stream_stays_while_a_request_is_open() -> None:
    box = Box(idle_s=0.0)
    box.mailbox.opened(1, 1)
    waiting = asyncio.ensure_future(ids_of(box.mailbox.stream()))
    done, _ = await asyncio.wait([waiting], timeout=SHORT_S)
    assert not done
    box.put(1)
    assert await waiting == [[1]]
    box.mailbox.close("given up")


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
    box.mailbox.close("given up")


async def test_a_client_that_never_attaches_lapses() -> None:
    box = Box(lease_s=SHORT_S)
    box.mailbox.opened(1, 1)
    box.mailbox.renew(0)
    assert await asyncio.wait_for(box.lost, 10) == SILENT
    box.mailbox.close("given up")


async def test_an_attached_client_lapses_when_it_is_silent() -> None:
    box = Box(lease_s=SHORT_S)
    box.mailbox.opened(1, 1)
    waiting = asyncio.ensure_future(ids_of(box.mailbox.stream()))
    assert await asyncio.wait_for(box.lost, 10) == SILENT
    box.mailbox.close("given up")
    with pytest.raises(EngineError, match="given up"):
        await waiting


async def test_renewal_keeps_the_lease_of_an_attached_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    box = Box(lease_s=LONG_S)
    box.mailbox.opened(1, 1)
    waiting = asyncio.ensure_future(ids_of(box.mailbox.stream()))
    await asyncio.sleep(0)
    start_s = loop.time()
    for count in range(1, 10):
        monkeypatch.setattr(loop, "time", lambda now=start_s + count * LONG_S / 2: now)
        # timers that are due run in the loop's next turn
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        box.mailbox.renew(0)
    assert not box.lost.done()
    box.put(1)
    assert await waiting == [[1]]
    box.mailbox.close("given up")


async def test_a_client_that_never_attaches_is_kept_no_more_than_the_bound() -> None:
    size = len(message(1))
    box = Box(max_bytes=3 * size)
    for _ in range(3):
        box.put(1)
    assert not box.lost.done()
    box.put(1)
    assert box.lost.result() == SLOW
    box.mailbox.close("given up")


async def test_what_the_stream_took_counts_until_the_client_has_told_that_it_came() -> None:
    size = len(message(1))
    box = Box(max_bytes=4 * size)
    stream = box.mailbox.stream()
    received = 0
    for _ in range(20):
        box.put(1)
        received += len(await anext(stream))
        box.mailbox.renew(received)
    assert not box.lost.done()
    for _ in range(4):
        box.put(1)
        await anext(stream)
        box.mailbox.renew(received)
    assert box.lost.result() == SLOW
    box.mailbox.close("given up")


async def test_a_new_stream_does_not_answer_for_what_an_earlier_one_lost() -> None:
    size = len(message(1))
    box = Box(max_bytes=3 * size)
    for _ in range(10):
        stream = box.mailbox.stream()
        box.put(1)
        await anext(stream)
        # a late word about a stream that had more
        box.mailbox.renew(1 << 30)
    box.put(1)
    assert not box.lost.done()
    box.mailbox.close("given up")


async def test_later_news_are_gathered_and_the_first_of_a_request_goes_at_once() -> None:
    box = Box(coalesce_s=LONG_S)
    box.mailbox.opened(1, 1)
    box.mailbox.opened(2, 1)
    stream = box.mailbox.stream()
    box.put(1)
    assert await ids_of(stream) == [[1]]
    waiting = asyncio.ensure_future(ids_of(stream))
    box.put(1)
    box.put(1)
    done, _ = await asyncio.wait([waiting], timeout=SHORT_S)
    assert not done
    box.put(1, 2)
    assert await waiting == [[1], [1], [1, 2]]
    box.mailbox.close("given up")


async def test_gathered_news_go_when_their_time_has_come() -> None:
    box = Box(coalesce_s=SHORT_S)
    box.mailbox.opened(1, 1)
    stream = box.mailbox.stream()
    box.put(1)
    assert await ids_of(stream) == [[1]]
    box.put(1)
    box.put(1)
    assert await asyncio.wait_for(ids_of(stream), 10) == [[1], [1]]
    box.mailbox.close("given up")


async def test_a_stream_that_ends_itself_first_gives_what_was_gathered() -> None:
    box = Box(coalesce_s=LONG_S, idle_s=0.0)
    stream = box.mailbox.stream()
    box.put(1)
    assert await ids_of(stream) == [[1]]
    box.put(1)
    assert [decode_batch(batch)[0].request_ids.tolist() async for batch in stream] == [[1]]
    box.mailbox.close("given up")
