import pytest

from engine.executor.channel import PACKET_BYTES, ChannelClosed
from engine.runtime.replica.async_channel import AsyncChannel
from tests.channels import channel_pair
from tests.fakes.loop_clock import settle

BIG = b"x" * (40 * PACKET_BYTES)


async def test_messages_beyond_the_buffer_are_sent_when_there_is_room() -> None:
    near, far = channel_pair()
    channel = AsyncChannel(near, on_message=lambda _: None, on_closed=lambda: None)
    channel.send(BIG)
    channel.send(b"after")
    messages = []
    for _ in range(100):
        if (message := far.try_recv()) is not None:
            messages.append(message)
        await settle()
    assert messages == [BIG, b"after"]
    channel.close()
    far.close()


async def test_messages_and_the_end_come_by_callback() -> None:
    near, far = channel_pair()
    messages: list[bytes] = []
    closed: list[bool] = []
    channel = AsyncChannel(near, on_message=messages.append, on_closed=lambda: closed.append(True))
    far.send(b"one")
    far.send(b"two")
    far.close()
    await settle()
    assert closed == [True]
    assert messages == [b"one", b"two"]
    channel.send(b"dropped")


async def test_closing_it_oneself_is_not_reported() -> None:
    near, far = channel_pair()
    closed: list[bool] = []
    channel = AsyncChannel(near, on_message=lambda _: None, on_closed=lambda: closed.append(True))
    channel.close()
    await settle()
    assert closed == []
    far.close()


async def test_a_message_that_cannot_be_used_ends_the_connection() -> None:
    near, far = channel_pair()
    closed: list[bool] = []

    def refuse(message: bytes) -> None:
        raise ValueError(message)

    AsyncChannel(near, on_message=refuse, on_closed=lambda: closed.append(True))
    far.send(b"junk")
    await settle()
    assert closed == [True]
    with pytest.raises(ChannelClosed):
        far.recv()
    far.close()
