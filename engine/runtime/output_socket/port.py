"""The replica's end of its clients' streams: a port, who is let in there, what is said and sent.

See `place` and `frames` beside it for the bytes. Serve's calls only bring a client the place of its
stream: each message of theirs costs several times the CPU time, in both processes.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from itertools import count
from typing import Any, Self, cast

from engine.errors import EngineError
from engine.executor.tcp_channel import open_port, tune
from engine.runtime.output_socket.frames import OUTPUT, FrameParser, frame
from engine.runtime.output_socket.place import (
    HELLO_BYTES,
    PATIENCE_S,
    SILENCE_S,
    OutputPlace,
    number_in,
)

logger = logging.getLogger(__name__)


class OutputPort:
    """A port of this node, where each client fetches the streams that are offered to it.

    Lives in one asyncio loop.
    """

    def __init__(self, address: str) -> None:
        """Bind.

        Args:
            address: of this node, in the network that the nodes share; no other is listened on.
        """
        self._socket, self._url = open_port(address)
        self._server: asyncio.Server | None = None
        self._numbers = count()
        self._offers: dict[int, OutputOffer] = {}
        self._strangers: set[_Connection] = set()

    async def open(self) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(partial(_Connection, self), sock=self._socket)

    def offer(self, submit: Callable[[bytes], bytes]) -> "OutputOffer":
        """Offer one stream; the offer is a context, with which the stream ends.

        Args:
            submit: takes an encoded `Request` of its client's, and returns an encoded `Verdict`.
        """
        place = OutputPlace(url=self._url, number=next(self._numbers))
        offer = self._offers[place.number] = OutputOffer(
            place, submit, withdraw=lambda: self._offers.pop(place.number, None)
        )
        return offer

    def close(self) -> None:
        """Stop listening, and send away who has not been let in; streams go on."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()
        for stranger in list(self._strangers):
            stranger.abort()

    def came(self, connection: "_Connection") -> None:
        """Note a connection of nobody knows whom."""
        self._strangers.add(connection)

    def left(self, connection: "_Connection") -> None:
        """Note that a connection has been let in, or is gone."""
        self._strangers.discard(connection)

    def take(self, hello: bytes) -> "OutputOffer | None":
        """The offer that a client asks for; None if it does not know its secret. Taken once."""
        offer = self._offers.get(number_in(hello))
        if offer is None or not hmac.compare_digest(hello, offer.place.hello):
            return None
        return self._offers.pop(offer.place.number)

    def refuse(self, peer: Any, reason: str) -> None:
        """Log that somebody was sent away."""
        logger.warning("peer_refused url=%s peer=%s reason=%s", self._url, peer, reason)


class OutputOffer:
    """One stream: offered, then fetched by its client. A context.

    Attributes:
        place: for the client, and for nobody else.
        submit: see `OutputPort.offer`.
    """

    def __init__(
        self,
        place: OutputPlace,
        submit: Callable[[bytes], bytes],
        *,
        withdraw: Callable[[], object],
    ) -> None:
        """Args: withdraw: called at the end."""
        self.place = place
        self.submit = submit
        self._withdraw = withdraw
        self._connection: asyncio.Future[_Connection] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """End the stream: when all has been read, or at once if it has failed."""
        self._withdraw()
        if not self._connection.done():
            self._connection.cancel()
        elif error is None:
            self._connection.result().close()
        else:
            self._connection.result().abort()

    def fetched_by(self, connection: "_Connection") -> None:
        """Let the client have it."""
        self._connection.set_result(connection)

    async def send(self, outputs: AsyncGenerator[bytes, None]) -> None:
        """Wait for the client, then send it everything.

        Raises:
            EngineError: if it does not come, or its connection is lost.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                connection = await asyncio.shield(self._connection)
        except TimeoutError:
            raise EngineError("the client has not come for its outputs") from None
        async with aclosing(outputs):
            async for message in outputs:
                connection.send(message)


class _Connection(asyncio.Protocol):
    """Looks at the number of a stream and at the proof that it is his, and then at requests."""

    def __init__(self, port: OutputPort) -> None:
        self._port = port
        self._heard = b""
        self._offer: OutputOffer | None = None
        self._frames = FrameParser()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has no common base class with asyncio
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"), SILENCE_S)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(PATIENCE_S, self._refuse, "it says nothing")
        self._port.came(self)

    def data_received(self, data: bytes) -> None:
        if self._offer is not None:
            self._take_requests(self._offer, data)
            return
        self._heard += data
        if len(self._heard) > HELLO_BYTES:
            # who has the secret waits for our proof before it says more
            self._refuse("it says more than a stranger has to say")
        elif len(self._heard) == HELLO_BYTES:
            self._introduce()

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._port.left(self)

    def send(self, message: bytes) -> None:
        """Send one message, or as much as there is room for, and the rest soon."""
        if self._transport.is_closing():
            raise EngineError("the connection to the client is lost")
        # one write, which is one call of the system where there is room
        self._transport.write(frame(OUTPUT, message))

    def close(self) -> None:
        """End the connection when everything has been sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        self._transport.abort()

    def _introduce(self) -> None:
        offer = self._port.take(self._heard)
        if offer is None:
            self._refuse("it does not know the secret of a stream")
            return
        self._offer = offer
        self._deadline.cancel()
        self._port.left(self)
        self._transport.write(offer.place.answer)
        offer.fetched_by(self)

    def _take_requests(self, offer: OutputOffer, data: bytes) -> None:
        """Answer each request with its verdict."""
        try:
            for number, request in self._frames.take(data):
                self._transport.write(frame(number, offer.submit(request)))
            return
        except EngineError:
            # no gang will serve here again; a client finds that out as by any end of its stream
            pass
        except Exception:  # process border: a client that sends nonsense counts as gone
            logger.exception("bad_message")
        self.abort()

    def _refuse(self, reason: str) -> None:
        peer = self._transport.get_extra_info("peername")
        self._port.refuse(peer and peer[0], reason)
        self.abort()
