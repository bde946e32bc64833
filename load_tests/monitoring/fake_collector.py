"""A collector of OpenTelemetry on this machine that can be made to die."""

import asyncio
import contextlib
import re
import socket
from enum import Enum

_HEAD_END = b"\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Mood(Enum):
    """What a collector does with who comes."""

    ALIVE = "alive"
    REFUSING = "refusing"
    HANGING = "hanging"


class FakeCollector:
    """Listens at one port in one of three moods: answers, is not there, or accepts and is silent.

    Attributes:
        num_batches: requests that it has answered.
        has_silenced: set when it has left one without an answer.
    """

    def __init__(self) -> None:
        self.num_batches = 0
        self.has_silenced = asyncio.Event()
        self._port = 0
        self._mood = Mood.REFUSING
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where spans are to be sent."""
        return f"http://127.0.0.1:{self._port}/v1/traces"

    def choose_port(self) -> None:
        """Choose a free port, at which nobody listens yet; it stays the same."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    async def be(self, mood: Mood) -> None:
        """Change the mood; connections of the one before are closed."""
        await self.close()
        self._mood = mood
        if mood is not Mood.REFUSING:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def close(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            # the other side has gone, or we have
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(_HEAD_END)
                    [length] = re.findall(rb"content-length: *(\d+)", head.lower())
                    await reader.readexactly(int(length))
                    if self._mood is Mood.HANGING:
                        self.has_silenced.set()
                        # nothing more comes until the connection is closed
                        await reader.read()
                        return
                    writer.write(_ANSWER)
                    await writer.drain()
                    self.num_batches += 1
        finally:
            self._open.discard(writer)
            writer.close()
