"""Channels without a second process."""

import socket

from engine.executor.channel import Channel
from engine.executor.tcp_channel import TcpChannel


def channel_pair() -> tuple[Channel, Channel]:
    """Two connected ends inside this process."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
