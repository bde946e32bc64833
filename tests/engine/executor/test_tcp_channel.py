"""A channel over TCP: its packets, and who is let in; what holds for all is in test_channel."""

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine.errors import EngineError
from engine.executor import tcp_channel as tcp_channel_module
from engine.executor.channel import PACKET_BYTES, ChannelClosed, Listener
from engine.executor.gang import PLANS, GangExecutor
from engine.executor.rank_loop import serve_plans
from engine.executor.tcp_channel import TcpChannel, TcpListener, connect_to, prove
from tests.channels import tcp_sockets
from tests.engine.executor.ranks import CAPACITY, FIRST_TOKEN, prefill
from tests.fakes import scripted_worker as scripted

BIG = bytes(range(256)) * (3 * PACKET_BYTES // 256)
SECRET = b"s" * 32


@pytest.fixture
def foreign() -> Iterator[tuple[socket.socket, TcpChannel]]:
    """A socket that may send anything, and the channel at the other end."""
    peer, ours = tcp_sockets()
    with closing(peer), closing(TcpChannel(ours)) as channel:
        yield peer, channel


@pytest.fixture
def listener() -> Iterator[TcpListener]:
    with closing(TcpListener("127.0.0.1", SECRET)) as listener:
        yield listener


class NarrowTcpChannel(TcpChannel):
    """Has room for a few bytes at a time, and for none every other time."""

    room = 0
    _is_full = False

    def _send_bytes(self, parts: Sequence[bytes | memoryview], flags: int) -> int:
        self._is_full = not self._is_full
        if self._is_full:
            raise BlockingIOError
        return super()._send_bytes([b"".join(parts)[: self.room]], flags)


@pytest.mark.parametrize("room", [1, 3, 100, PACKET_BYTES - 1])
def test_a_packet_that_was_sent_in_part_goes_on_where_it_stopped(room: int) -> None:
    near, far = tcp_sockets()
    with closing(NarrowTcpChannel(near)) as left, closing(TcpChannel(far)) as right:
        left.room = room
        start, sent = 0, BIG[: 1000 * room]
        received = None
        while start < len(sent):
            start = left.try_send(sent, start)
            received = right.try_recv()
        # without pytest's account of the difference, which takes seconds for a megabyte
        is_same = (received or right.recv()) == sent
        assert is_same


def test_bytes_may_come_one_by_one(foreign: tuple[socket.socket, TcpChannel]) -> None:
    peer, channel = foreign
    *first, last = b"\x03\x00\x00\x00\x00be\x04\x00\x00\x00\x01gin"
    for byte in first:
        peer.send(bytes([byte]))
        assert channel.try_recv() is None
    peer.send(bytes([last]) + b"\x02\x00\x00\x00\x01!")
    assert [channel.recv(), channel.recv()] == [b"begin", b"!"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x01",
        b"\x02\x00\x00\x00\x07x",
        (PACKET_BYTES + 2).to_bytes(4, "little"),
        b"GET / HTTP/1.1",
    ],
    ids=["nothing", "empty message", "unknown flag", "too long", "another protocol"],
)
def test_what_is_no_packet_counts_as_the_end(
    foreign: tuple[socket.socket, TcpChannel], sent: bytes
) -> None:
    peer, channel = foreign
    peer.sendall(sent)
    # no more follows, which nobody needs to find out
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelClosed, match="the peer sent what is no"):
        channel.recv()


def test_a_gang_with_a_rank_on_another_node_executes_plans(listener: TcpListener) -> None:
    with ThreadPoolExecutor(1) as rank:
        worker = scripted.ScriptedWorker(scripted.engine_config(), step_s=0.0)
        channel = connect_to(listener.url, SECRET)
        ended = rank.submit(serve_plans, worker, listener.accept(10), is_first=True)
        executor = GangExecutor([channel], CAPACITY, run_ahead=2, step_deadline_s=30.0)
        with closing(executor):
            for step in range(2):
                executor.submit(prefill(step))
            assert [executor.collect().tokens.tolist() for _ in range(2)] == [FIRST_TOKEN] * 2
            executor.submit(prefill(2, scripted.FAIL))
            with pytest.raises(EngineError, match="scripted failure"):
                executor.collect()
        ended.result(10)


@pytest.mark.parametrize("secret", [b"", b"t" * 32, SECRET[:-1]])
def test_who_does_not_know_the_secret_is_sent_away_and_the_next_one_let_in(
    listener: TcpListener, secret: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ChannelClosed, match="does not know the secret"):
        connect_to(listener.url, secret).close()
    with closing(connect_to(listener.url, SECRET)) as near, closing(listener.accept(10)) as far:
        near.send(b"hello")
        assert far.recv() == b"hello"
    assert "peer_refused" in caplog.text
    assert "peer=127.0.0.1 reason=the peer does not know the secret" in caplog.text


def test_plans_of_who_does_not_prove_itself_are_not_read(listener: TcpListener) -> None:
    url = urlsplit(listener.url)
    plan = PLANS.encode(prefill(0))
    packet = (1 + len(plan)).to_bytes(4, "little") + b"\x01" + plan
    with socket.create_connection((url.hostname, url.port)) as intruder:
        # long enough to be taken for a number and a proof
        intruder.sendall(packet)
        with closing(connect_to(listener.url, SECRET)) as near, closing(listener.accept(10)) as far:
            near.send(b"hello")
            assert far.recv() == b"hello"


def test_a_peer_that_says_nothing_does_not_keep_others_out(
    listener: TcpListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = urlsplit(listener.url)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(tcp_channel_module, "HANDSHAKE_TIMEOUT_S", 0.05)
        with socket.create_connection((url.hostname, url.port)) as silent:
            while silent.recv(1 << 10):
                pass
    with closing(connect_to(listener.url, SECRET)), closing(listener.accept(10)):
        pass
    assert "the peer does not introduce itself" in caplog.text


def test_our_own_proof_is_none_of_the_peer() -> None:
    """A peer that sends back whatever it gets knows nothing."""
    mirror, ours = tcp_sockets()

    def reflect() -> None:
        for size in (32, 32):
            mirror.sendall(mirror.recv(size, socket.MSG_WAITALL))

    thread = threading.Thread(target=reflect)
    thread.start()
    with closing(mirror), closing(ours):
        with pytest.raises(ChannelClosed, match="does not know the secret"):
            prove(ours, SECRET, b"rank", b"scheduler")
        thread.join(10)


def test_a_port_is_open_on_one_address_until_the_peer_has_come(listener: TcpListener) -> None:
    assert listener.url.startswith("tcp://127.0.0.1:")
    port = urlsplit(listener.url).port
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.2", port or 0)),
    ):
        pass
    with (
        closing(connect_to(listener.url, SECRET)),
        closing(listener.accept(10)),
        pytest.raises(ChannelClosed, match="cannot connect"),
    ):
        connect_to(listener.url, SECRET)


def test_a_peer_that_nobody_waits_for_any_more_is_let_go() -> None:
    with closing(TcpListener("127.0.0.1", SECRET)) as listener:
        near = connect_to(listener.url, SECRET)
    with closing(near), pytest.raises(ChannelClosed):
        near.recv()


def test_nobody_comes(listener: TcpListener) -> None:
    with pytest.raises(ChannelClosed, match="no peer on tcp://127"):
        listener.accept(0.01)


def test_a_path_leads_to_a_socket_file(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with (
        closing(Listener(path)) as listener,
        closing(connect_to(path, SECRET)) as near,
        closing(listener.accept(10)) as far,
    ):
        assert not isinstance(near, TcpChannel)
        near.send(b"hello")
        assert far.recv() == b"hello"
