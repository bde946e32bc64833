"""The client's end of its stream of a replica; see `place` and `frames` for the bytes."""

import asyncio
import hmac
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from itertools import count
from typing import Protocol, cast

from engine.errors import EngineError
from engine.executor.tcp_channel import tune
from engine.runtime.output_socket.frames import OUTPUT, FrameParser, frame
from engine.runtime.output_socket.place import (
    PATIENCE_S,
    PROOF_BYTES,
    SILENCE_S,
    OutputPlace,
)


class OpenStream(Protocol):
    """A stream whose replica is known, for as long as it is read."""

    async def submit(self, request: bytes) -> bytes | None:
        """Send an encoded `Request`; returns an encoded `Verdict`.

        Returns:
            None if the replica has ended the stream and has not taken the request.

        Raises:
            EngineError: if the connection is lost, and with it whether it has.
        """
        ...


async def read_outputs(
    place: OutputPlace, on_open: Callable[[OpenStream], object] = lambda stream: None
) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a stream until its replica ends it.

    Args:
        on_open: called when the replica has proven itself.

    Raises:
        EngineError: if the replica cannot be reached there, if it is another process that listens,
            or if the connection is lost on the way.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, reader = await loop.create_connection(
                partial(_Reader, place, on_open), *place.address
            )
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
        reader.leave()
    if reader.failure:
        raise EngineError(f"the outputs from {place.url} have broken off: {reader.failure}")


class _Reader(asyncio.Protocol):
    """Takes a stream apart. Implements `OpenStream`.

    Attributes:
        messages: complete ones, in order.
        has_ended: whether no more will come.
        failure: why not, unless the replica has ended the stream behind a whole message.
    """

    def __init__(self, place: OutputPlace, on_open: Callable[[OpenStream], object]) -> None:
        self.messages: deque[bytes] = deque()
        self.has_ended = False
        self.failure = ""
        self._place = place
        self._on_open = on_open
        self._is_known = False
        # what has come of the proof
        self._proof = bytearray()
        self._frames = FrameParser()
        self._wake_up = asyncio.Event()
        self._numbers = count(OUTPUT + 1)
        self._submitted: dict[int, asyncio.Future[bytes | None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has no common base class with asyncio
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"), SILENCE_S)
        self._transport.write(self._place.hello)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(PATIENCE_S, self._fail, "the replica says nothing")

    def data_received(self, data: bytes) -> None:
        if self._is_known:
            self._take_frames(data)
            return
        self._proof += data
        if len(self._proof) >= PROOF_BYTES:
            self._check_proof()
        if self._is_known:
            self._take_frames(self._proof[PROOF_BYTES:])

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self.has_ended = True
        is_cut = error is not None or self._frames.is_within_frame or not self._is_known
        if is_cut and not self.failure:
            self.failure = str(error or "the connection was closed")
        for answer in self._submitted.values():
            if not answer.done():
                self._end(answer)
        self._wake_up.set()

    async def submit(self, request: bytes) -> bytes | None:
        """See `OpenStream.submit`."""
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        if self.has_ended:
            self._end(answer)
            return await answer
        number = next(self._numbers)
        self._submitted[number] = answer
        self._transport.write(frame(number, request))
        try:
            return await answer
        finally:
            del self._submitted[number]

    async def wait(self) -> None:
        """Wait until something has come, or the end."""
        self._wake_up.clear()
        await self._wake_up.wait()

    def leave(self) -> None:
        """End the connection now; what has not been taken is lost."""
        if not self.has_ended:
            self._fail("it is not read any more")

    def _check_proof(self) -> None:
        if not hmac.compare_digest(bytes(self._proof[:PROOF_BYTES]), self._place.answer):
            self._fail("who listens there does not know the secret of the stream")
            return
        self._is_known = True
        self._deadline.cancel()
        self._on_open(self)

    def _take_frames(self, data: bytes | bytearray) -> None:
        try:
            for number, body in self._frames.take(data):
                if number == OUTPUT:
                    self.messages.append(body)
                    self._wake_up.set()
                elif number in self._submitted and not self._submitted[number].done():
                    self._submitted[number].set_result(body)
        except ValueError as error:
            self._fail(str(error))

    def _end(self, answer: "asyncio.Future[bytes | None]") -> None:
        """Answer what has had no answer when the stream ended."""
        if self.failure:
            error = f"the connection to {self._place.url} has broken off: {self.failure}"
            answer.set_exception(EngineError(error))
        else:
            # what it has taken it answers before it ends
            answer.set_result(None)

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._transport.abort()
