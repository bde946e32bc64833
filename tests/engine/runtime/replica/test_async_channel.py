import asyncio

import pytest

from engine.executor.channel import PACKET_BYTES, ChannelClosed
from engine.runtime.replica.async_channel import AsyncChannel
from tests.channels import channel_pair

BIG = b"x" * (40 * PACKET_BYTES)


async def test_messages_beyond_the_buffer_are_sent_when_there_is_room() -> None:
    near, far = channel_pair()
    channel = AsyncChannel(near, on_message=lambda _: None, on_closed=lambda: None)
    channel.send(BIG)
    channel.send(b"after")
    messages = [await asyncio.to_thread(far.recv) for _ in range(2)]
    assert messages == [BIG, b"after"]
    channel.close()
    far.close()


async def test_messages_and_the_end_come_by_callback() -> None:
    near, far = channel_pair()
    messages: list[bytes] = []
    closed = asyncio.Event()
    channel = AsyncChannel(near, on_message=messages.append, on_closed=closed.set)
    far.send(b"one")
    far.send(b"two")
    far.close()
    await asyncio.wait_for(closed.wait(), 10)
    assert messages == [b"one", b"two"]
    channel.send(b"dropped")


async def test_closing_it_oneself_is_not_told() -> None:
    near, far = channel_pair()
    closed = asyncio.Event()
    channel = AsyncChannel(near, on_message=lambda _: None, on_closed=closed.set)
    channel.close()
    await asyncio.sleep(0)
    assert not closed.is_set()
    far.close()


async def test_a_message_that_cannot_be_used_ends_the_connection() -> None:
    near, far = channel_pair()
    closed = asyncio.Event()

    def refuse(message: bytes) -> None:
        raise ValueError(message)

    AsyncChannel(near, on_message=refuse, on_closed=closed.set)
    far.send(b"junk")
    await asyncio.wait_for(closed.wait(), 10)
    with pytest.raises(ChannelClosed):
        far.recv()
    far.close()
