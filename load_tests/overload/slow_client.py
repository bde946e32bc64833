"""Clients that ask for much and read little of it."""

import asyncio
import fcntl
import json
import socket
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# of a client that reads slowly: bytes a second, and what its socket takes by itself
SLOW_BYTES = 1024
_SOCKET_BYTES = 4096
# of a segment, as between machines: one of 64 KiB on this machine lets the sender's system take
# megabytes before its program notices that nobody reads
_SEGMENT_BYTES = 1448
# how often connections are listed, and how long what is left may take to come
POLL_S = 0.5
_REST_S = 2.0
# the end of a stream of the API that was not cut
END = b"data: [DONE]"
# Linux lists the connections of all programs here, which takes a millisecond; to ask for those of
# each process takes half a second, in which nothing else is read
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _CLOSE_WAIT = "01", "08"


@dataclass(slots=True, kw_only=True)
class SlowClient:
    """A connection whose answer is not read, or hardly.

    Attributes:
        port: of its end.
        num_read: bytes so far.
        is_cut: whether the answer came to an end without its own; known after `rest`.
        taken_s: when its socket had last taken a byte, as far as anybody has looked.
        ended_s: when its server had ended the connection, from `taken_s` on; None if it has not.
    """

    reader: socket.socket
    reads: bool
    port: int
    taken_s: float = field(default_factory=time.perf_counter)
    num_read: int = 0
    is_cut: bool = False
    ended_s: float | None = None
    _tail: bytes = b""
    _num_taken: int = 0

    @classmethod
    async def connected(cls, port: int, request: bytes, *, reads: bool) -> "SlowClient":
        """Send a request to a server of this machine by a socket that takes little of its answer.

        Args:
            reads: whether a kilobyte a second is read, and not nothing.
        """
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, request)
        return cls(reader=client, reads=reads, port=client.getsockname()[1])

    async def read_on(self, period_s: float = 1.0) -> None:
        """Read a kilobyte in each period until the end of the connection."""
        loop = asyncio.get_running_loop()
        while self.reads and self.ended_s is None:
            await asyncio.sleep(period_s)
            try:
                data = await loop.sock_recv(self.reader, SLOW_BYTES)
            except OSError:
                return
            self._take(data)
            if not data:
                return

    async def rest(self) -> int:
        """Read what is there and close; its bytes, as far as the system has not lost them.

        Of an answer that goes on now, for it was not cut, no more is read than ends it.
        """
        loop, total, has_ended = asyncio.get_running_loop(), 0, False
        self.reader.setblocking(False)
        try:
            while data := await asyncio.wait_for(loop.sock_recv(self.reader, 1 << 16), _REST_S):
                self._take(data)
                total += len(data)
            has_ended = True
        except TimeoutError:
            pass
        except OSError:
            has_ended = True
        self.is_cut = has_ended and END not in self._tail
        self.reader.close()
        return total

    def look(self, *, is_open: bool) -> None:
        """Note whether its socket has taken more, and when its server has ended the connection."""
        if self.ended_s is not None:
            return
        now_s = time.perf_counter()
        waiting = fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4))
        num_taken = self.num_read + int.from_bytes(waiting, sys.byteorder)
        if num_taken > self._num_taken:
            self._num_taken, self.taken_s = num_taken, now_s
        if not is_open:
            self.ended_s = now_s - self.taken_s

    def _take(self, data: bytes) -> None:
        self.num_read += len(data)
        self._tail = (self._tail + data)[-64:]


def http_request(path: str, body: dict[str, Any], key: str = "none") -> bytes:
    """Return a request that posts a body, as it is sent."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: server\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def until_cut(
    clients: Sequence[SlowClient],
    server_port: int,
    limit_s: float,
    on_poll: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Let clients be slow until those that read nothing are cut, and no longer than a limit.

    One that reads a little goes on with what sockets hold of it, long after it was cut.

    Args:
        on_poll: called now and then in the meantime.
    """
    end_s = time.perf_counter() + limit_s
    reading = [asyncio.create_task(each.read_on()) for each in clients]
    silent = [each for each in clients if not each.reads]
    try:
        while any(each.ended_s is None for each in silent) and time.perf_counter() < end_s:
            await asyncio.sleep(POLL_S)
            still_open = open_ports(server_port)
            for each in silent:
                each.look(is_open=each.port in still_open)
            if on_poll is not None:
                await on_poll()
    finally:
        # those that were not cut would read for as long as there is something
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


def open_ports(server_port: int) -> set[int]:
    """Ports of the clients whose connections a server of this machine still holds open."""
    ports = set()
    for table in _TABLES:
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            _, local, remote, state, *_ = line.split()
            if _port(local) == server_port and state in (_ESTABLISHED, _CLOSE_WAIT):
                ports.add(_port(remote))
    return ports


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
