"""Messages between two processes, over a socket of one node or over TCP, and who may connect."""

import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, WorkerDied
from engine.executor import channel as channel_module
from engine.executor.channel import (
    PACKET_BYTES,
    Channel,
    ChannelClosed,
    Listener,
    connect,
)
from tests.channels import channel_pair, tcp_channel_pair

BIG = bytes(range(256)) * (PACKET_BYTES // 16)


def is_same(message: bytes | None, expected: bytes) -> bool:
    """Compare without pytest's account of the difference, which takes seconds for a megabyte."""
    return message == expected


MakePair = Callable[[], tuple[Channel, Channel]]
BOTH_KINDS = [channel_pair, tcp_channel_pair]


def both_ends(make_pair: MakePair) -> Iterator[tuple[Channel, Channel]]:
    left, right = make_pair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """Of a socket of this node, where a packet arrives as it was sent."""
    yield from both_ends(channel_pair)


@pytest.fixture(params=BOTH_KINDS)
def any_ends(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    """Of a channel of either kind."""
    yield from both_ends(request.param)


def received(channel: Channel) -> bytes:
    """Wait for a message without waiting in `recv`."""
    while (message := channel.try_recv()) is None:
        pass
    return message


@pytest.fixture
def foreign() -> Iterator[tuple[socket.socket, Channel]]:
    """A socket that may send anything, and the channel at the other end."""
    peer, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(peer), closing(Channel(ours)) as channel:
        yield peer, channel


@pytest.mark.parametrize("make_pair", BOTH_KINDS)
@given(messages=st.lists(st.binary(min_size=1, max_size=300), max_size=10))
def test_messages_come_whole_and_in_order(make_pair: MakePair, messages: list[bytes]) -> None:
    left, right = make_pair()
    with closing(left), closing(right):
        for message in messages:
            left.send(message)
        assert [right.recv() for _ in messages] == messages
        assert right.try_recv() is None


@pytest.mark.parametrize("size", [PACKET_BYTES - 1, PACKET_BYTES, PACKET_BYTES + 1, len(BIG)])
@pytest.mark.parametrize("receive", [Channel.recv, received])
def test_a_message_larger_than_a_packet_comes_whole(
    any_ends: tuple[Channel, Channel], receive: Callable[[Channel], bytes], size: int
) -> None:
    left, right = any_ends

    def send() -> None:
        # closed where the other end is not what it should be
        with suppress(ChannelClosed):
            left.send(BIG[:size])

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert is_same(receive(right), BIG[:size])
    finally:
        right.close()
        sender.join()


def test_try_send_stops_at_a_full_buffer_and_goes_on_later(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    start = left.try_send(BIG)
    assert 0 < start < len(BIG)
    assert right.try_recv() is None
    while start < len(BIG):
        assert right.try_recv() is None
        start = left.try_send(BIG, start)
    assert is_same(right.try_recv(), BIG)


def test_what_was_sent_before_the_end_is_still_received(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send(b"last words")
    left.close()
    assert right.recv() == b"last words"
    with pytest.raises(ChannelClosed):
        right.recv()
    with pytest.raises(ChannelClosed):
        right.try_recv()
    with pytest.raises(ChannelClosed):
        right.send(b"anybody?")
    with pytest.raises(ChannelClosed):
        right.try_send(b"anybody?")


def test_what_was_sent_last_arrives_although_the_sender_left_messages_unread(
    any_ends: tuple[Channel, Channel],
) -> None:
    """A rank that fails has the plans made ahead in its queue when it closes the channel."""
    left, right = any_ends
    for _ in range(2):
        right.send(b"not read any more" * 1000)
    left.send(b"last words")
    left.close()
    assert right.recv() == b"last words"
    with pytest.raises(ChannelClosed):
        right.recv()


def test_half_a_message_waits_for_its_rest_beside_nothing_else(
    foreign: tuple[socket.socket, Channel],
) -> None:
    """What `try_recv` has taken of a message is not lost, and the next one begins anew."""
    peer, channel = foreign
    peer.send(b"\x00begin")
    assert channel.try_recv() is None
    peer.send(b"\x01 and end")
    peer.send(b"\x01next")
    assert channel.try_recv() == b"begin and end"
    assert channel.try_recv() == b"next"


def test_a_channel_is_readable_when_a_packet_has_come(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    assert not select.select([right], [], [], 0)[0]
    left.send(b"hello")
    assert select.select([right], [], [], 0)[0] == [right]


def test_close_wakes_a_thread_that_waits(any_ends: tuple[Channel, Channel]) -> None:
    left, _ = any_ends
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            left.recv()
        except WorkerDied as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    left.close()
    thread.join(10)
    assert isinstance(errors[0], ChannelClosed)


def test_the_socket_file_is_private_and_gone_after_accept(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with closing(Listener(path)) as listener:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with closing(connect(path)) as client, closing(listener.accept(10)) as server:
            assert not os.path.exists(path)
            client.send(b"hello")
            assert server.recv() == b"hello"


def test_nobody_comes_or_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(ChannelClosed, match="no peer"):
        Listener(path).accept(0.01)
    assert not os.path.exists(path)
    with pytest.raises(ChannelClosed, match="cannot connect"):
        connect(path)


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        Listener(str(tmp_path / ("x" * 108)))


@pytest.mark.parametrize(
    "packet",
    [b"\x00", b"\x01", b"\x02x", b"GET / HTTP/1.1", b"\x01" + b"x" * (PACKET_BYTES + 1)],
    ids=["empty part", "empty message", "unknown flag", "another protocol", "too long"],
)
def test_a_packet_that_is_not_ours_counts_as_the_end(
    foreign: tuple[socket.socket, Channel], packet: bytes
) -> None:
    peer, channel = foreign
    peer.send(packet)
    with pytest.raises(ChannelClosed, match="no part of a message"):
        channel.recv()


def test_a_message_without_an_end_is_not_gathered_for_ever(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_MESSAGE_BYTES", 2 * PACKET_BYTES)
    left, right = ends
    # each message is counted by itself
    for _ in range(2):
        left.send(b"x" * (2 * PACKET_BYTES))
        assert len(right.recv()) == 2 * PACKET_BYTES
    left.send(b"x" * (2 * PACKET_BYTES + 1))
    with pytest.raises(ChannelClosed, match="no part of a message"):
        right.recv()


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_packets_from_anywhere_raise_nothing_else_and_never_block(packets: list[bytes]) -> None:
    peer, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for packet in packets:
        peer.send(packet)
    peer.close()
    messages = iter(Channel(ours).recv, b"")
    with pytest.raises(ChannelClosed):
        list(messages)
    ours.close()
