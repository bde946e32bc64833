"""Channels without a second process."""

import socket

from engine.executor.channel import PACKET_BYTES, Channel
from engine.executor.tcp_channel import TcpChannel


def channel_pair() -> tuple[Channel, Channel]:
    """Two connected ends inside this process, with room for a few packets on any machine."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (left, right):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PACKET_BYTES)
    return Channel(left), Channel(right)


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over TCP inside this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    return left, right


def tcp_channel_pair() -> tuple[TcpChannel, TcpChannel]:
    """Two connected ends over TCP, which know each other."""
    left, right = tcp_sockets()
    return TcpChannel(left), TcpChannel(right)
