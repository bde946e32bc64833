"""Clients that read nothing or little, against a server that writes as much as it can."""

import asyncio
import socket

import pytest

from load_tests.overload import slow_client
from load_tests.overload.slow_client import SLOW_BYTES, SlowClient, open_ports, until_cut

NUM_BYTES = 16 << 20


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_client, "POLL_S", 0.01)
    monkeypatch.setattr(slow_client, "_REST_S", 0.2)


async def test_a_client_that_reads_nothing_holds_its_server_up_until_it_is_cut() -> None:
    is_open, is_cut = asyncio.Event(), asyncio.Event()
    ports: list[int] = []

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(2) == b"go"
        ports.append(writer.get_extra_info("peername")[1])
        writer.write(b"x" * NUM_BYTES)
        is_open.set()
        await is_cut.wait()
        writer.transport.abort()

    async with await asyncio.start_server(pour, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await SlowClient.connected(port, b"go", reads=False)
        await is_open.wait()
        assert ports == [client.port]
        assert client.port in open_ports(port)
        is_cut.set()
        # a reset may throw away what is unread
        assert await client.rest() < NUM_BYTES
        assert client.port not in open_ports(port)


async def test_a_slow_client_reads_a_little_until_the_end() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"x" * (SLOW_BYTES // 2))
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = await SlowClient.connected(port, b"go", reads=True)
        await client.read_on(period_s=0.0)
        assert client.num_read == SLOW_BYTES // 2
        assert await client.rest() == 0


async def test_a_server_that_cuts_nobody_is_not_waited_for_longer_than_the_limit() -> None:
    is_over = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"x" * NUM_BYTES)
        await is_over.wait()
        writer.transport.abort()

    async with await asyncio.start_server(pour, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        clients = [await SlowClient.connected(port, b"go", reads=reads) for reads in (False, True)]
        polls: list[int] = []

        async def polled() -> None:
            polls.append(1)

        await until_cut(clients, port, 0.05, polled)
        assert polls
        assert [each.ended_s for each in clients] == [None, None]
        # nobody reads on, nor is there an end
        assert len(asyncio.all_tasks()) == 1 + len(clients)
        assert await clients[0].rest() > 0
        assert not clients[0].is_cut
        is_over.set()
        await clients[1].rest()
        assert clients[1].is_cut


async def test_who_is_cut_is_told_from_who_could_be_sent_all() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = await reader.readexactly(5)
        writer.write(b"data: {}\n\n" + (b"data: [DONE]\n\n" if word == b"whole" else b""))
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        words = (b"whole", b"parts")
        clients = [await SlowClient.connected(port, word, reads=False) for word in words]
        await until_cut(clients, port, 10.0)
        assert all(each.ended_s is not None for each in clients)
        assert [await each.rest() for each in clients] == [24, 10]
        assert [each.is_cut for each in clients] == [False, True]


def test_the_time_until_the_end_counts_from_the_last_byte_that_was_taken() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        client = SlowClient(reader=reader, reads=False, port=0, taken_s=-100.0)
        client.look(is_open=True)
        assert (client.taken_s, client.ended_s) == (-100.0, None)
        writer.send(b"x")
        client.look(is_open=True)
        taken_s = client.taken_s
        assert taken_s > -100.0
        client.look(is_open=True)
        assert client.taken_s == taken_s
        client.taken_s -= 50.0
        client.look(is_open=False)
        assert client.ended_s is not None
        assert client.ended_s >= 50.0
