"""Clients that ask for much and read little of it."""

import asyncio
import socket
import time
from dataclasses import dataclass, field

import psutil

# of a client that reads slowly: bytes a second, and what its socket takes by itself
SLOW_BYTES = 1024
_SOCKET_BYTES = 4096


@dataclass(slots=True, kw_only=True)
class SlowClient:
    """A connection whose answer is not read, or hardly.

    Attributes:
        port: of its end.
        num_read: bytes so far.
        ended_s: when its server had cut it, from the request on; None if it has not.
    """

    reader: socket.socket
    reads: bool
    port: int
    sent_s: float = field(default_factory=time.perf_counter)
    num_read: int = 0
    ended_s: float | None = None

    @classmethod
    async def connected(cls, port: int, request: bytes, *, reads: bool) -> "SlowClient":
        """Send a request to a server of this machine by a socket that takes little of its answer.

        Args:
            reads: whether a kilobyte a second is read, and not nothing.
        """
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
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
            self.num_read += len(data)
            if not data:
                return

    async def rest(self) -> int:
        """Read what is left; its bytes, as far as the system has not thrown them away."""
        loop, total = asyncio.get_running_loop(), 0
        self.reader.setblocking(False)
        try:
            while data := await asyncio.wait_for(loop.sock_recv(self.reader, 1 << 16), 2.0):
                total += len(data)
        except (OSError, TimeoutError):
            pass
        self.reader.close()
        return total


def open_ports(server_port: int) -> set[int]:
    """Ports of the clients whose connections a server still holds open."""
    return {
        each.raddr.port
        for each in psutil.net_connections("tcp")
        if each.laddr.port == server_port
        and each.raddr
        and each.status in (psutil.CONN_ESTABLISHED, psutil.CONN_CLOSE_WAIT)
    }
