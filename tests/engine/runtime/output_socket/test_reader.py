"""What a client makes of the bytes of a stream, from a replica that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from engine.errors import EngineError
from engine.runtime.output_socket import reader as reader_module
from engine.runtime.output_socket.frames import MAX_BODY_BYTES, OUTPUT, frame
from engine.runtime.output_socket.place import HELLO_BYTES, OutputPlace
from engine.runtime.output_socket.reader import OpenStream, read_outputs

Play = Callable[[OutputPlace, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def replica(play: Play, *, hangs_up: bool = True) -> AsyncIterator[OutputPlace]:
    """A replica that plays its part to one client, and then hangs up, or waits for it to do so."""
    places: list[OutputPlace] = []
    has_ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(HELLO_BYTES) == places[0].hello
        with suppress(ConnectionError):
            await play(places[0], writer)
            if not hangs_up:
                await reader.read()
        with suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        has_ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    places.append(OutputPlace(url=f"tcp://{host}:{port}", number=3))
    yield places[0]
    await has_ended.wait()
    server.close()
    await server.wait_closed()


def framed(*messages: bytes) -> bytes:
    return b"".join(frame(OUTPUT, each) for each in messages)


async def test_bytes_may_come_one_by_one_or_all_together() -> None:
    sent = [b"one", b"", b"t" * 300, b"three"]

    async def one_by_one(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        for byte in place.answer + framed(*sent):
            writer.write(bytes([byte]))
            await writer.drain()

    async def together(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write(place.answer + framed(*sent))

    for play in (one_by_one, together):
        async with replica(play) as place:
            assert [message async for message in read_outputs(place)] == sent


async def test_what_has_come_is_there_before_the_next_comes() -> None:
    may_go_on = asyncio.Event()

    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        whole, part = framed(b"one", b"two"), framed(b"three")
        writer.write(place.answer + whole + part[:1])
        await may_go_on.wait()
        writer.write(part[1:])

    async with replica(play) as place:
        messages = read_outputs(place)
        assert [await anext(messages), await anext(messages)] == [b"one", b"two"]
        may_go_on.set()
        assert [message async for message in messages] == [b"three"]


@pytest.mark.parametrize("kind", ["another secret", "our own proof", "another protocol"])
async def test_output_of_who_does_not_know_the_secret_is_not_read(kind: str) -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        stranger = OutputPlace(url=place.url, number=place.number)
        answers = {
            "another secret": stranger.answer,
            "our own proof": place.hello[-len(place.answer) :],
            "another protocol": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        }
        writer.write(answers[kind] + framed(b"output"))

    async with replica(play) as place:
        with pytest.raises(EngineError, match="does not know the secret"):
            await anext(read_outputs(place))


@pytest.mark.parametrize("num_missing", [1, 7, 18])
async def test_a_stream_that_breaks_off_within_a_message_is_an_error_behind_the_others(
    num_missing: int,
) -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write((place.answer + framed(b"whole", b"broken!"))[:-num_missing])

    async with replica(play) as place:
        messages = read_outputs(place)
        assert await anext(messages) == b"whole"
        with pytest.raises(EngineError, match="broken off: the connection was closed"):
            await anext(messages)


async def test_a_stream_that_breaks_off_before_the_proof_is_an_error() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        pass

    async with replica(play) as place:
        with pytest.raises(EngineError, match="broken off: the connection was closed"):
            await anext(read_outputs(place))


async def test_a_message_of_any_size_is_not_awaited() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        too_long = (MAX_BODY_BYTES + 1).to_bytes(4, "little") + bytes(8)
        writer.write(place.answer + framed(b"fits") + too_long)

    async with replica(play, hangs_up=False) as place:
        messages = read_outputs(place)
        assert await anext(messages) == b"fits"
        with pytest.raises(EngineError, match="too long"):
            await anext(messages)


async def test_a_replica_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        pass

    monkeypatch.setattr(reader_module, "PATIENCE_S", 0.05)
    async with replica(play, hangs_up=False) as place:
        with pytest.raises(EngineError, match="says nothing"):
            await anext(read_outputs(place))


async def test_who_stops_reading_hangs_up() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write(place.answer + framed(b"one"))

    # which ends when its client has gone
    async with replica(play, hangs_up=False) as place:
        messages = read_outputs(place)
        assert await anext(messages) == b"one"
        await messages.aclose()


class Submission:
    """Submits one request as soon as the stream is open, beside reading it."""

    def __init__(self) -> None:
        self.verdict: asyncio.Task[bytes | None] | None = None
        self.stream: OpenStream | None = None
        self.has_begun = asyncio.Event()

    def begin(self, stream: OpenStream) -> None:
        self.stream = stream
        self.verdict = asyncio.create_task(self._submit(stream))

    async def _submit(self, stream: OpenStream) -> bytes | None:
        self.has_begun.set()
        return await stream.submit(b"request")


async def read_with(submission: Submission, place: OutputPlace) -> list[bytes]:
    return [message async for message in read_outputs(place, submission.begin)]


async def test_a_verdict_is_for_its_request_and_no_output() -> None:
    submission = Submission()

    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write(place.answer + framed(b"one"))
        await submission.has_begun.wait()
        # of another request, which has been given up
        writer.write(frame(77, b"another") + frame(1, b"verdict") + framed(b"two"))

    async with replica(play, hangs_up=False) as place:
        messages = read_outputs(place, submission.begin)
        assert [await anext(messages), await anext(messages)] == [b"one", b"two"]
        assert submission.verdict is not None
        assert await submission.verdict == b"verdict"
        await messages.aclose()


async def test_a_request_is_not_sent_to_who_does_not_know_the_secret() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(len(place.answer)))

    submission = Submission()
    async with replica(play) as place:
        with pytest.raises(EngineError, match="does not know the secret"):
            await read_with(submission, place)
    assert submission.stream is None


async def test_a_stream_that_ends_without_a_verdict_has_not_taken_the_request() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write(place.answer + framed(b"last"))

    submission = Submission()
    async with replica(play) as place:
        assert await read_with(submission, place) == [b"last"]
    assert submission.verdict is not None
    assert submission.stream is not None
    assert await submission.verdict is None
    assert await submission.stream.submit(b"late") is None


async def test_of_a_connection_that_is_lost_nobody_knows_what_it_has_taken() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write((place.answer + framed(b"broken"))[:-1])

    submission = Submission()
    async with replica(play) as place:
        with pytest.raises(EngineError, match="broken off"):
            await read_with(submission, place)
    assert submission.verdict is not None
    assert submission.stream is not None
    for late in (submission.verdict, submission.stream.submit(b"late")):
        with pytest.raises(EngineError, match="broken off: the connection was closed"):
            await late


async def test_who_stops_reading_hears_of_no_verdict() -> None:
    async def play(place: OutputPlace, writer: asyncio.StreamWriter) -> None:
        writer.write(place.answer + framed(b"one"))

    submission = Submission()
    async with replica(play, hangs_up=False) as place:
        messages = read_outputs(place, submission.begin)
        await anext(messages)
        await messages.aclose()
        assert submission.verdict is not None
        with pytest.raises(EngineError, match="is not read any more"):
            await submission.verdict
