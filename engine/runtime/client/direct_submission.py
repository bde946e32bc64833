"""Requests over the connections on which outputs come, where there is one to the replica chosen.

A call of Serve's passes its router, its queue and gRPC, which takes milliseconds. It is still what
a first request takes, what waits for a replica to start, and what goes on after a replica was lost.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.runtime.messages import REQUESTS
from engine.runtime.output_socket.reader import OpenStream
from engine.runtime.routing import known_replicas
from engine.runtime.routing.routing_table import RoutingTable


class DirectSubmission:
    """The open streams of one client, and which of them takes a request. Lives in one loop."""

    def __init__(self) -> None:
        self._streams: dict[str, OpenStream] = {}
        self._table = RoutingTable(random.Random())

    @contextmanager
    def reading(self, replica: str) -> Iterator[Callable[[OpenStream], None]]:
        """While the stream of a replica is read; gives what notes that it is open."""
        opened: list[OpenStream] = []

        def note(stream: OpenStream) -> None:
            opened.append(stream)
            self._streams[replica] = stream

        try:
            yield note
        finally:
            # a later stream of the replica may be there already
            if self._streams.get(replica) in opened:
                del self._streams[replica]

    async def submit(self, request: bytes) -> bytes | None:
        """Send an encoded `Request` where it will be served soonest; returns an encoded `Verdict`.

        Returns:
            None if no connection is open to that replica: it is to be sent by Serve.

        Raises:
            EngineError: if the connection is lost, and with it whether it was taken.
        """
        stream = self._streams.get(self._choose(request)) if self._streams else None
        return None if stream is None else await stream.submit(request)

    def _choose(self, request: bytes) -> str:
        stats = known_replicas.latest()
        if len(stats) <= 1:
            return next(iter(stats), "")
        return self._table.choose(REQUESTS.decode(request), stats, time.monotonic())[0]
