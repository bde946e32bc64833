"""Streams over a port of the replica: who is let in, what is sent, and how a stream ends."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import pytest
import uvloop

from engine.errors import EngineError
from engine.executor import tcp_channel
from engine.runtime.output_socket import port as port_module
from engine.runtime.output_socket import reader as reader_module
from engine.runtime.output_socket.frames import HEADER_BYTES, frame
from engine.runtime.output_socket.place import PROOF_BYTES, SILENCE_S, OutputPlace
from engine.runtime.output_socket.port import OutputOffer, OutputPort
from engine.runtime.output_socket.reader import OpenStream, read_outputs

BIG = bytes(range(256)) * (1 << 13)


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Replicas have uvloop's loops, tests else asyncio's own."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@pytest.fixture(params=["127.0.0.1", "::1"])
def address(request: pytest.FixtureRequest) -> str:
    """Of this machine, of either kind."""
    found: str = request.param
    if ":" in found:
        try:
            socket.create_server((found, 0), family=socket.AF_INET6).close()
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
            pytest.skip("no IPv6 here")
    return found


@pytest.fixture
async def port() -> AsyncIterator[OutputPort]:
    port = OutputPort("127.0.0.1")
    await port.open()
    yield port
    port.close()


class Outputs:
    """A stream that the test feeds: messages, an error, or None for its end."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.is_over = False

    async def stream(self) -> AsyncGenerator[bytes, None]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
                self.queue.task_done()
        finally:
            self.is_over = True

    def put(self, *items: bytes | Exception | None) -> None:
        for item in items:
            self.queue.put_nowait(item)


def take(request: bytes) -> bytes:
    """A replica that accepts what it is sent."""
    return b"verdict on " + request


async def serve(offer: OutputOffer, outputs: Outputs) -> None:
    """What a replica does for a client that has asked for its stream."""
    with offer:
        await offer.send(outputs.stream())


async def collect(place: OutputPlace) -> list[bytes]:
    return [message async for message in read_outputs(place)]


async def test_messages_come_whole_and_in_order_until_the_stream_ends(address: str) -> None:
    port, outputs = OutputPort(address), Outputs()
    await port.open()
    # more than the buffers of the system hold
    sent = [b"first", b"", *[BIG] * 8, b"last"]
    outputs.put(*sent, None)
    offer = port.offer(take)
    serving = asyncio.create_task(serve(offer, outputs))
    # without pytest's account of the difference, which takes seconds for megabytes
    is_same = await collect(offer.place) == sent
    assert is_same
    await serving
    assert outputs.is_over
    port.close()


async def test_each_client_gets_its_own_stream(port: OutputPort) -> None:
    offers, streams = [port.offer(take) for _ in range(3)], [Outputs() for _ in range(3)]
    serving = [asyncio.create_task(serve(*pair)) for pair in zip(offers, streams, strict=True)]
    for number, outputs in enumerate(streams):
        outputs.put(b"%d" % number, None)
    # the last one first
    assert [await collect(offer.place) for offer in offers[::-1]] == [[b"2"], [b"1"], [b"0"]]
    await asyncio.gather(*serving)


async def say(place: OutputPlace, text: bytes) -> bytes:
    """Connect, say something, and return what is answered until the end."""
    reader, writer = await asyncio.open_connection(*place.address)
    writer.write(text)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await hang_up(writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    "kind", ["another secret", "our own proof", "another number", "another protocol", "too much"]
)
async def test_who_does_not_know_the_secret_is_sent_away_and_its_client_let_in(
    port: OutputPort, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    offer, outputs = port.offer(take), Outputs()
    place, number = offer.place, offer.place.hello[:-PROOF_BYTES]
    stranger = OutputPlace(url=place.url, number=place.number)
    said = {
        "another secret": stranger.hello,
        "our own proof": number + place.answer,
        "another number": OutputPlace(url=place.url, number=7, secret=place.secret).hello,
        "another protocol": b"GET / HTTP/1.1\r\nHost: localhost:8000\r\n\r\n",
        "too much": place.hello + b"x",
    }
    outputs.put(b"output", None)
    serving = asyncio.create_task(serve(offer, outputs))
    assert await say(place, said[kind]) == b""
    assert not serving.done()
    assert await collect(place) == [b"output"]
    await serving
    [line] = [record.message for record in caplog.records if "peer_refused" in record.message]
    assert f"url={place.url} peer=127.0.0.1 reason=it " in line
    assert place.secret.hex() not in caplog.text
    assert str(place.secret) not in caplog.text


async def test_a_place_is_good_for_one_client(port: OutputPort) -> None:
    offer, outputs = port.offer(take), Outputs()
    serving = asyncio.create_task(serve(offer, outputs))
    first = asyncio.create_task(collect(offer.place))
    outputs.put(b"output")
    await outputs.queue.join()
    with pytest.raises(EngineError, match="broken off"):
        await collect(offer.place)
    outputs.put(None)
    assert await first == [b"output"]
    await serving


async def test_requests_come_on_the_way_of_the_outputs(port: OutputPort) -> None:
    offer, outputs = port.offer(take), Outputs()
    serving = asyncio.create_task(serve(offer, outputs))
    streams: list[OpenStream] = []
    messages = read_outputs(offer.place, streams.append)
    outputs.put(b"before")
    assert await anext(messages) == b"before"
    requests = [b"%d" % number for number in range(3)] + [BIG]
    verdicts = asyncio.gather(*map(streams[0].submit, requests))
    reading = asyncio.create_task(anext(messages))
    is_same = await verdicts == [take(request) for request in requests]
    assert is_same
    outputs.put(b"after", None)
    assert await reading == b"after"
    await serving
    assert [message async for message in messages] == []


@pytest.mark.parametrize("kind", ["too long", "nonsense", "no gang will serve again"])
async def test_what_cannot_be_answered_ends_the_connection(port: OutputPort, kind: str) -> None:
    said = {"too long": b"\xff" * HEADER_BYTES}

    def refuse(request: bytes) -> bytes:
        raise EngineError("the gang is gone") if kind.startswith("no gang") else ValueError(request)

    offer, outputs = port.offer(refuse), Outputs()
    serving = asyncio.create_task(serve(offer, outputs))
    reader, writer = await asyncio.open_connection(*offer.place.address)
    writer.write(offer.place.hello)
    assert await reader.readexactly(PROOF_BYTES) == offer.place.answer
    writer.write(said.get(kind, frame(1, b"request")))
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    outputs.put(b"output")
    with pytest.raises(EngineError, match="is lost"):
        await serving
    assert outputs.is_over
    await hang_up(writer)


@pytest.fixture
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is waited for."""
    for module in (port_module, reader_module):
        monkeypatch.setattr(module, "PATIENCE_S", 0.05)


@pytest.mark.usefixtures("_impatience")
async def test_who_says_nothing_is_let_go(
    port: OutputPort, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await say(port.offer(take).place, b"") == b""
    assert "reason=it says nothing" in caplog.text


@pytest.mark.usefixtures("_impatience")
async def test_a_client_that_does_not_come_is_not_waited_for(port: OutputPort) -> None:
    offer, outputs = port.offer(take), Outputs()
    with pytest.raises(EngineError, match="has not come"):
        await serve(offer, outputs)
    # and comes too late then
    assert await say(offer.place, offer.place.hello) == b""


async def test_a_stream_that_fails_is_cut_and_says_why_to_its_call(port: OutputPort) -> None:
    offer, outputs = port.offer(take), Outputs()
    serving = asyncio.create_task(serve(offer, outputs))
    reading = asyncio.create_task(collect(offer.place))
    outputs.put(b"output", EngineError("it was slow"))
    with pytest.raises(EngineError, match="it was slow"):
        await serving
    assert await reading == [b"output"]


async def test_a_client_that_leaves_ends_its_stream_with_the_next_message(port: OutputPort) -> None:
    offer, outputs = port.offer(take), Outputs()
    serving = asyncio.create_task(serve(offer, outputs))
    outputs.put(b"output")
    messages = read_outputs(offer.place)
    assert await anext(messages) == b"output"
    await messages.aclose()
    for _ in range(1000):
        outputs.put(b"more")
        await asyncio.wait({serving}, timeout=0)
    outputs.put(None)
    with pytest.raises(EngineError, match="is lost"):
        await serving
    assert outputs.is_over


async def test_a_call_that_is_cancelled_cuts_its_stream(port: OutputPort) -> None:
    offer, outputs = port.offer(take), Outputs()
    serving = asyncio.create_task(serve(offer, outputs))
    reading = asyncio.create_task(collect(offer.place))
    outputs.put(b"output")
    await outputs.queue.join()
    serving.cancel()
    await asyncio.wait({serving})
    assert serving.cancelled()
    assert outputs.is_over
    assert await reading == [b"output"]


async def test_a_client_that_reads_nothing_holds_up_no_other(port: OutputPort) -> None:
    slow, quick = Outputs(), Outputs()
    offers = port.offer(take), port.offer(take)
    serving = [
        asyncio.create_task(serve(*pair)) for pair in zip(offers, (slow, quick), strict=True)
    ]
    with socket.create_connection(offers[0].place.address) as frozen:
        frozen.sendall(offers[0].place.hello)
        slow.put(*[BIG] * 20, None)
        quick.put(*[BIG] * 3, None)
        is_same = await collect(offers[1].place) == [BIG] * 3
        assert is_same
        await asyncio.gather(*serving)


async def test_a_port_is_open_on_one_address_until_it_is_closed() -> None:
    port = OutputPort("127.0.0.1")
    await port.open()
    offer, outputs = port.offer(take), Outputs()
    place = offer.place
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", place.address[1]))
    serving = asyncio.create_task(serve(offer, outputs))
    stranger, writer = await asyncio.open_connection(*place.address)
    reading = asyncio.create_task(collect(place))
    outputs.put(b"before")
    await outputs.queue.join()
    port.close()
    assert await stranger.read() == b""
    await hang_up(writer)
    with pytest.raises(EngineError, match="cannot be fetched from"):
        await collect(place)
    # what was let in goes on
    outputs.put(b"after", None)
    assert await reading == [b"before", b"after"]
    await serving


def test_a_port_that_was_never_opened_is_closed() -> None:
    port = OutputPort("127.0.0.1")
    place = OutputPlace(url=port._url, number=0)
    port.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place.address)


async def test_a_node_that_is_cut_off_is_noticed(
    port: OutputPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[tuple[int, int]] = []

    def tune(connection: socket.socket, silence_s: int) -> None:
        tcp_channel.tune(connection, silence_s)
        options = socket.SO_KEEPALIVE, socket.TCP_USER_TIMEOUT
        levels = socket.SOL_SOCKET, socket.IPPROTO_TCP
        keepalive, timeout_ms = map(connection.getsockopt, levels, options)
        tuned.append((keepalive, timeout_ms))

    for module in (port_module, reader_module):
        monkeypatch.setattr(module, "tune", tune)
    offer, outputs = port.offer(take), Outputs()
    outputs.put(None)
    await asyncio.gather(serve(offer, outputs), collect(offer.place))
    assert tuned == [(1, SILENCE_S * 1000)] * 2
