"""A channel between two nodes: the messages of `engine.executor.channel` over TCP.

TCP keeps no borders, so each packet follows its size, 4 bytes, least significant first. Before the
first packet both ends prove, by an HMAC over numbers that the other has drawn, that they know the
secret of the gang; whoever cannot is sent away and nothing else of what it sent is looked at. What
is sent is not encrypted: nodes of a cluster share a network that no one else reads.
"""

import hashlib
import hmac
import logging
import secrets
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

from engine.executor.channel import PACKET_BYTES, Channel, ChannelClosed, connect

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
# a node that is cut off counts as gone after about as many seconds
SILENCE_S = 10
_SCHEME = "tcp://"
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_SIZE_BYTES = 4


class TcpChannel(Channel):
    """One end of a connection whose other end knows the secret."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        connection.setblocking(True)
        tune(connection, SILENCE_S)
        self._size = bytearray(_SIZE_BYTES)
        # bytes received of the packet that comes, and sent of the one that goes, sizes included
        self._num_read = 0
        self._num_sent = 0

    def _write_packet(self, flag: bytes, part: memoryview, flags: int) -> None:
        """See `Channel`; what was sent before a BlockingIOError is not sent again."""
        start = (1 + len(part)).to_bytes(_SIZE_BYTES, "little") + flag
        while self._num_sent < len(start) + len(part):
            rest = start[self._num_sent :], part[max(0, self._num_sent - len(start)) :]
            self._num_sent += self._send_bytes(rest, flags)
        self._num_sent = 0

    def _read_packet(self, flags: int) -> int:
        while self._num_read < _SIZE_BYTES:
            self._num_read += self._receive(memoryview(self._size)[self._num_read :], flags)
        size = int.from_bytes(self._size, "little")
        if not 1 < size <= PACKET_BYTES + 1:
            raise ChannelClosed("the peer sent what is no packet")
        while (place := self._num_read - _SIZE_BYTES) < size:
            self._num_read += self._receive(memoryview(self._packet)[place:size], flags)
        self._num_read = 0
        return size


class TcpListener:
    """A port of one address that waits for the one peer that knows the secret.

    Attributes:
        url: where the peer connects to, see `connect_to`.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        """Bind and begin to wait.

        Args:
            address: of this node, in the network that the nodes share; no other is listened on.
        """
        self._socket, self.url = open_port(address)
        self._secret = secret
        # the peer waits for our proof before anyone asks for the channel
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="accept")
        self._is_taken = False
        self._accepted: Future[Channel] = self._thread.submit(self._accept)

    def accept(self, timeout_s: float) -> Channel:
        """Wait for the peer; the port is closed then.

        Raises:
            ChannelClosed: if it did not come in time.
        """
        try:
            channel = self._accepted.result(timeout_s)
            self._is_taken = True
        except TimeoutError as error:
            raise ChannelClosed(f"no peer on {self.url} in {timeout_s:g} s") from error
        finally:
            self.close()
        return channel

    def close(self) -> None:
        """Stop listening; a peer that was let in and not accepted is let go."""
        # wakes the thread that waits
        if not self._accepted.done():
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.shutdown()
        self._socket.close()
        if not self._is_taken and self._accepted.exception() is None:
            self._accepted.result().close()

    def _accept(self) -> Channel:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError as error:
                raise ChannelClosed(f"no peer on {self.url}: {error}") from error
            try:
                prove(connection, self._secret, b"rank", b"scheduler")
                return TcpChannel(connection)
            except ChannelClosed as error:
                logger.warning("peer_refused url=%s peer=%s reason=%s", self.url, peer[0], error)
                connection.close()


def open_port(address: str) -> tuple[socket.socket, str]:
    """Listen on a free port of an address of this node; returns its URL, `tcp://host:port`, too."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    host = f"[{address}]" if family == socket.AF_INET6 else address
    return server, f"{_SCHEME}{host}:{server.getsockname()[1]}"


def connect_to(address: str, secret: bytes) -> Channel:
    """Connect to a listener.

    Args:
        address: path of a Unix socket, or URL of a `TcpListener`.
        secret: of the gang; a Unix socket is protected by the mode of its file instead.

    Raises:
        ChannelClosed: if no process listens there, or one that does not know the secret.
    """
    if not address.startswith(_SCHEME):
        return connect(address)
    url = urlsplit(address)
    try:
        connection = socket.create_connection((url.hostname, url.port), HANDSHAKE_TIMEOUT_S)
    except OSError as error:
        raise ChannelClosed(f"cannot connect to {address}: {error}") from error
    try:
        prove(connection, secret, b"scheduler", b"rank")
    except ChannelClosed:
        connection.close()
        raise
    return TcpChannel(connection)


def prove(connection: socket.socket, secret: bytes, own_role: bytes, peer_role: bytes) -> None:
    """Show that this end knows the secret, and see that the other does; neither learns it.

    The roles keep a peer from sending our own proof back to us.

    Raises:
        ChannelClosed: if the peer cannot, or takes too long.
    """
    deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
    own_nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        connection.settimeout(HANDSHAKE_TIMEOUT_S)
        connection.sendall(own_nonce)
        peer_nonce = _read(connection, _NONCE_BYTES, deadline_s)
        connection.sendall(_proof(secret, own_role, peer_nonce, own_nonce))
        peer_proof = _read(connection, _PROOF_BYTES, deadline_s)
    except OSError as error:
        raise ChannelClosed(f"the peer does not introduce itself: {error}") from error
    if not hmac.compare_digest(peer_proof, _proof(secret, peer_role, own_nonce, peer_nonce)):
        raise ChannelClosed("the peer does not know the secret of this gang")
    connection.settimeout(None)


def tune(connection: socket.socket, silence_s: int) -> None:
    """Send small packets at once, and notice a node that is cut off.

    Args:
        silence_s: seconds in which the other node must acknowledge something, or take something.
    """
    options = {
        socket.TCP_NODELAY: 1,
        socket.TCP_KEEPIDLE: silence_s // 2,
        socket.TCP_KEEPINTVL: 1,
        socket.TCP_KEEPCNT: silence_s // 2,
        socket.TCP_USER_TIMEOUT: silence_s * 1000,
    }
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _proof(secret: bytes, role: bytes, challenge: bytes, own_nonce: bytes) -> bytes:
    return hmac.digest(secret, b"pagoda " + role + challenge + own_nonce, "sha256")


def _read(connection: socket.socket, size: int, deadline_s: float) -> bytes:
    """Read exactly `size` bytes.

    Raises:
        OSError: if they do not come in time.
    """
    data = b""
    while len(data) < size:
        connection.settimeout(max(1e-3, deadline_s - time.monotonic()))
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer closed the connection")
        data += part
    return data
