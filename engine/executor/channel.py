"""Whole messages between two processes of one machine, over a Unix socket.

A SOCK_SEQPACKET socket keeps the borders of packets, lets a reader sleep in the kernel, and gives
end-of-file when the peer dies. Framing: a packet is one flag byte (more packets follow, or this is
the last) and 1 to `PACKET_BYTES` bytes of the message; a message takes as many packets as it needs,
up to `MAX_MESSAGE_BYTES` in all. A peer that breaks this is treated like one that is gone.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from engine.errors import ConfigError, WorkerDied

PACKET_BYTES = 64 << 10
MAX_MESSAGE_BYTES = 256 << 20
MAX_PATH_BYTES = 107
_MORE, _LAST = b"\x00", b"\x01"


class ChannelClosed(WorkerDied):
    """The other end of a channel is gone."""


class Channel:
    """One end of a connected pair. Not thread-safe: one thread sends, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        # room for one byte more than a packet may have, which shows that a packet is too long
        self._packet = bytearray(PACKET_BYTES + 2)
        self._received: list[bytes] = []
        self._received_bytes = 0

    def fileno(self) -> int:
        """Readable when a packet or the end has arrived."""
        return self._socket.fileno()

    def send(self, message: bytes) -> None:
        """Send a message; waits while the peer's buffer is full.

        Raises:
            ChannelClosed: if the peer is gone.
        """
        for start in range(0, len(message), PACKET_BYTES):
            self._send_packet(message, start, 0)

    def try_send(self, message: bytes, start: int = 0) -> int:
        """Send packets from byte `start` on while the peer's buffer has room.

        Returns:
            Where to go on; `len(message)` or more once all is sent.

        Raises:
            ChannelClosed: if the peer is gone.
        """
        while start < len(message):
            try:
                self._send_packet(message, start, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            start += PACKET_BYTES
        return start

    def recv(self) -> bytes:
        """Wait for a message.

        Raises:
            ChannelClosed: if the peer is gone.
        """
        while (message := self._recv_packet(0)) is None:
            pass
        return message

    def try_recv(self) -> bytes | None:
        """Take a message if one has arrived completely.

        Raises:
            ChannelClosed: if the peer is gone.
        """
        try:
            while (message := self._recv_packet(socket.MSG_DONTWAIT)) is None:
                pass
        except BlockingIOError:
            return None
        return message

    def close(self) -> None:
        """End the connection; a thread of this process that waits on it sees the end too.

        Messages that were not received are dropped; those that were sent still reach the peer.
        """
        # shutdown fails if the peer has closed already; then only this end is left to close
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
            # closing with packets unread would reset the connection: the peer would get an error
            # before what was sent last, such as the reason why a rank failed
            while self._socket.recv(PACKET_BYTES, socket.MSG_DONTWAIT):
                pass
        self._socket.close()

    def _send_packet(self, message: bytes, start: int, flags: int) -> None:
        end = start + PACKET_BYTES
        flag = _LAST if end >= len(message) else _MORE
        self._write_packet(flag, memoryview(message)[start:end], flags)

    def _write_packet(self, flag: bytes, part: memoryview, flags: int) -> None:
        """Send a whole packet, or none of it: then a BlockingIOError is raised."""
        self._send_bytes([flag, part], flags)

    def _send_bytes(self, parts: Sequence[bytes | memoryview], flags: int) -> int:
        """Send as much as there is room for; returns how many bytes."""
        try:
            return self._socket.sendmsg(parts, (), flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ChannelClosed(f"the peer is gone: {error}") from error

    def _recv_packet(self, flags: int) -> bytes | None:
        """Receive one packet; the whole message if it was the last."""
        size = self._read_packet(flags)
        self._received.append(bytes(memoryview(self._packet)[1:size]))
        self._received_bytes += size - 1
        self._check_packet(size)
        if self._packet[:1] == _MORE:
            return None
        message = b"".join(self._received)
        self._received.clear()
        self._received_bytes = 0
        return message

    def _read_packet(self, flags: int) -> int:
        """Receive one packet into `_packet`; returns its size."""
        return self._receive(self._packet, flags)

    def _receive(self, target: bytearray | memoryview, flags: int) -> int:
        """Receive what is there into `target`; returns how many bytes."""
        try:
            size = self._socket.recv_into(target, 0, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ChannelClosed(f"the connection broke: {error}") from error
        if not size:
            raise ChannelClosed("the peer closed the connection")
        return size

    def _check_packet(self, size: int) -> None:
        is_valid = self._packet[:1] in (_MORE, _LAST) and 1 < size <= PACKET_BYTES + 1
        if not is_valid or self._received_bytes > MAX_MESSAGE_BYTES:
            raise ChannelClosed("the peer sent what is no part of a message")


class Listener:
    """A socket file of mode 0600 that waits for one peer and is removed after that."""

    def __init__(self, path: str) -> None:
        """Bind.

        Raises:
            ConfigError: if the path is too long for a Unix socket.
        """
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(
                f"socket path is longer than {MAX_PATH_BYTES} bytes, set a shorter TMPDIR: {path}"
            )
        self._path = path
        self._socket = _new_socket()
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._socket.listen(1)

    def accept(self, timeout_s: float) -> Channel:
        """Wait for the peer, then remove the file.

        Raises:
            ChannelClosed: if no peer came in time.
        """
        self._socket.settimeout(timeout_s)
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            raise ChannelClosed(f"no peer on {self._path}: {error}") from error
        finally:
            self.close()
        connection.setblocking(True)
        return Channel(connection)

    def close(self) -> None:
        """Stop listening and remove the file."""
        self._socket.close()
        if os.path.exists(self._path):
            os.unlink(self._path)


def connect(path: str) -> Channel:
    """Connect to a listener.

    Raises:
        ChannelClosed: if no process listens there.
    """
    connection = _new_socket()
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise ChannelClosed(f"cannot connect to {path}: {error}") from error
    return Channel(connection)


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
