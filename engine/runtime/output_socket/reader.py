"""The client's end of its stream of a replica; see `place` for the bytes."""

import asyncio
import hmac
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial
from typing import cast

from engine.errors import EngineError
from engine.executor.tcp_channel import tune
from engine.runtime.output_socket.place import (
    MAX_MESSAGE_BYTES,
    PATIENCE_S,
    PROOF_BYTES,
    SILENCE_S,
    SIZE_BYTES,
    OutputPlace,
)


async def read_outputs(place: OutputPlace) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a stream until its replica ends it.

    Raises:
        EngineError: if the replica cannot be reached there, if it is another process that listens,
            or if the connection is lost on the way.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, reader = await loop.create_connection(partial(_Reader, place), *place.address)
    except OSError as error:  # a TimeoutError is one
        raise EngineError(f"the outputs cannot be fetched from {place.url}: {error}") from error
    try:
        while True:
            while reader.messages:
                yield reader.messages.popleft()
            if reader.has_ended:
                break
            await reader.wait()
    finally:
        reader.abort()
    if reader.failure:
        raise EngineError(f"the outputs from {place.url} have broken off: {reader.failure}")


class _Reader(asyncio.Protocol):
    """Takes a stream apart.

    Attributes:
        messages: complete ones, in order.
        has_ended: whether no more will come.
        failure: why not, unless the replica has ended the stream behind a whole message.
    """

    def __init__(self, place: OutputPlace) -> None:
        self.messages: deque[bytes] = deque()
        self.has_ended = False
        self.failure = ""
        self._place = place
        self._is_known = False
        # what has come of the proof, or of a message
        self._part = bytearray()
        self._wake_up = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has no common base class with asyncio
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"), SILENCE_S)
        self._transport.write(self._place.hello)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(PATIENCE_S, self._fail, "the replica says nothing")

    def data_received(self, data: bytes) -> None:
        self._part += data
        if not self._is_known:
            self._check_proof()
        if self._is_known:
            self._take_messages()

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self.has_ended = True
        if not self.failure and (error is not None or self._part or not self._is_known):
            self.failure = str(error or "the connection was closed")
        self._wake_up.set()

    async def wait(self) -> None:
        """Wait until something has come, or the end."""
        self._wake_up.clear()
        await self._wake_up.wait()

    def abort(self) -> None:
        """End the connection now; what has not been taken is lost."""
        self._transport.abort()

    def _check_proof(self) -> None:
        if len(self._part) < PROOF_BYTES:
            return
        if not hmac.compare_digest(bytes(self._part[:PROOF_BYTES]), self._place.answer):
            self._fail("who listens there does not know the secret of the stream")
            return
        self._is_known = True
        self._deadline.cancel()
        del self._part[:PROOF_BYTES]

    def _take_messages(self) -> None:
        part = self._part
        while len(part) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(part[:SIZE_BYTES], "little")
            if end > SIZE_BYTES + MAX_MESSAGE_BYTES:
                self._fail("a message is too long")
                return
            if len(part) < end:
                return
            self.messages.append(bytes(part[SIZE_BYTES:end]))
            del part[:end]
            self._wake_up.set()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._transport.abort()
